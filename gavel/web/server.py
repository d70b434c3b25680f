"""The process: settings, the port, TLS; it runs until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509
from uvicorn.protocols.http.h11_impl import H11Protocol

from gavel.client.atomic_file import AtomicFile
from gavel.client.errors import Invalid
from gavel.client.settings import Connection
from gavel.web.app import Gateway, application
from gavel.web.assets import FOLDER
from gavel.web.door import HEADERS_BYTES_MAX
from gavel.web.sessions import Seal, read_key
from gavel.web.upstream import Upstream
from protos.gavel.v1.limits import is_loopback

# How long a browser may leave what we send unread, and how long the headers of a request may take to arrive.
UNREAD_S, HEADERS_S = 30.0, 60.0
CONNECTIONS_MAX = 1000
BACKLOG = 128
# How long answers in progress may take once the gateway is being stopped.
STOP_S = 5


@dataclass(frozen=True)
class WebConfig:
    """The settings of a gateway. `names`: host names by which browsers reach it, besides those of loopback."""

    listen: str
    names: Sequence[str] = ()
    certificate: Path | None = None
    key: Path | None = None
    key_file: Path | None = None
    pages: Path = FOLDER
    # A file that receives the address, with the code; for programs that start a gateway.
    announce: Path | None = None
    # Whether to take another port if another program has this one.
    any_port: bool = False

    def checked(self, connection: Connection) -> WebConfig:
        """Return the settings, or raise Invalid: beyond this machine only with TLS, and then only with tokens."""
        host, _, port = self.listen.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
            raise Invalid(f"--listen {self.listen}: is not HOST:PORT, such as 127.0.0.1:7080", field="listen")
        if bool(self.certificate) != bool(self.key):
            raise Invalid("--tls-cert and --tls-key must be given together", field="tls")
        if not is_loopback(self.listen) and not self.certificate:
            raise Invalid(
                f"--listen {self.listen}: beyond this machine only with TLS: give --tls-cert and --tls-key, or let a "
                "proxy with TLS forward to 127.0.0.1",
                field="listen",
            )
        if (self.names or not is_loopback(self.listen)) and not connection.token:
            raise Invalid(
                "without tokens the gateway serves this machine only: a scheduler that others use needs tokens "
                "(`gavel init`), and the gateway one of the role viewer",
                field="listen",
            )
        return self


class _Protocol(H11Protocol):
    """HTTP/1.1 that gives up browsers which do not read what they asked for, or do not say what they want."""

    _unread: asyncio.TimerHandle | None = None
    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent = self.loop.call_later(HEADERS_S, self._drop_silent)

    def _drop_silent(self) -> None:
        # uvicorn's types hide that there is no request yet.
        if not self.cycle:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._unread)
        _cancel(self._silent)
        super().connection_lost(exc)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _Server(uvicorn.Server):
    """A server whose streams end when it is being stopped."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


async def serve(
    config: WebConfig, connection: Connection, ready: Callable[[str, Callable[[], None]], object]
) -> None:
    """Serve until SIGINT or SIGTERM.

    `ready` is called once the port is open, with the URL, which includes the code, and with a function that stops the
    gateway and may be called by any thread.
    """
    config.checked(connection)
    seal = Seal(read_key(config.key_file))
    upstream = Upstream(connection)
    gateway = Gateway(upstream, seal, config.pages)
    names = [*config.names, *_certified_names(config.certificate)]
    listener = _listener(config.listen, any_port=config.any_port)
    server = _Server(_uvicorn_config(config, application(gateway, names)), gateway.stopping)
    url = _url(config, listener, gateway, seal, names)
    mirroring = asyncio.create_task(gateway.mirror.run())

    def stop() -> None:
        server.should_exit = True

    # A mirror that fails by a fault of its own must not leave a gateway behind that never shows anything new.
    mirroring.add_done_callback(lambda _: stop())
    try:
        if config.announce is not None:
            with AtomicFile(config.announce) as file:
                file.write(json.dumps({"url": url}).encode())
        ready(url, stop)
        await server.serve(sockets=[listener])
        if mirroring.done():
            mirroring.result()
    finally:
        mirroring.cancel()
        with suppress(asyncio.CancelledError):
            await mirroring
        await upstream.close()


def _uvicorn_config(config: WebConfig, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )


def _listener(address: str, *, any_port: bool) -> socket.socket:
    """Return a socket that listens on an address. Raises Invalid if it cannot."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
        except OSError as error:
            if not any_port or error.errno != errno.EADDRINUSE:
                raise
            listener.bind((where[0], 0, *where[2:]))
        # Two programs can bind to one port; only one of them can listen on it.
        listener.listen(BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        problem = f"--listen {address}: {why.lower()}; choose another address or port"
        raise Invalid(problem, field="listen") from None
    return listener


def _url(
    config: WebConfig, listener: socket.socket, gateway: Gateway, seal: Seal, names: Sequence[str]
) -> str:
    host, port = config.listen.rpartition(":")[0], listener.getsockname()[1]
    # No browser can open the address of all interfaces.
    if ipaddress.ip_address(listener.getsockname()[0]).is_unspecified:
        host = next((name for name in names if not is_loopback(name)), "localhost")
    fragment = f"#code={seal.code}" if gateway.callers.mode == "code" else ""
    return f"{'https' if config.certificate else 'http'}://{host}:{port}/{fragment}"


def _certified_names(path: Path | None) -> list[str]:
    """Return the names in a certificate: browsers accept no others."""
    if path is None:
        return []
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise Invalid(f"--tls-cert {path}: {(error.strerror or str(error)).lower()}", field="tls") from None
    except (ValueError, x509.ExtensionNotFound):
        raise Invalid(f"--tls-cert {path}: is not a certificate with names", field="tls") from None
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]
