"""The process: settings, the port, TLS; it runs until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gavel.client.atomic_file import AtomicFile
from gavel.client.errors import Invalid
from gavel.client.settings import Connection
from gavel.web.app import Gateway, application
from gavel.web.assets import FOLDER
from gavel.web.connections import KEEP_ALIVE_S, BrowserProtocol
from gavel.web.door import HEADERS_BYTES_MAX
from gavel.web.sessions import Seal, read_key
from gavel.web.upstream import Upstream
from protos.gavel.v1.limits import is_loopback

BACKLOG = 128
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
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
        for name in self.names:
            if not _NAME.fullmatch(name):
                problem = "is not a host name, such as gavel.example.org, without https:// and without a port"
                raise Invalid(f"--name {name}: {problem}", field="name")
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
    names = [*config.names, *_certified_names(config.certificate)]
    _check_key(config.key, config.certificate)
    seal = Seal(read_key(config.key_file))
    upstream = Upstream(connection)
    gateway = Gateway(upstream, seal, config.pages)
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
        http=BrowserProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
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
    """Return the names in a certificate, as they stand in the header Host: browsers accept no others."""
    if path is None:
        return []
    try:
        certificate = x509.load_pem_x509_certificate(_content(path, "--tls-cert"))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        raise Invalid(f"--tls-cert {path}: is not a certificate with names", field="tls") from None
    addresses = [
        f"[{address}]" if address.version == 6 else str(address)
        for address in names.get_values_for_type(x509.IPAddress)
    ]
    # A pattern such as *.example.org is no name: --name says which of its names are ours.
    plain = [name for name in names.get_values_for_type(x509.DNSName) if "*" not in name]
    return [*plain, *addresses]


def _check_key(path: Path | None, certificate: Path | None) -> None:
    """Raise Invalid unless the file holds the private key of the certificate, without a password."""
    if path is None or certificate is None:
        return
    try:
        key = load_pem_private_key(_content(path, "--tls-key"), password=None)
    except TypeError:
        problem = "is protected by a password, for which a service cannot ask: store the key without one"
        raise Invalid(f"--tls-key {path}: {problem}", field="tls") from None
    except (ValueError, UnsupportedAlgorithm):
        raise Invalid(f"--tls-key {path}: is not a private key as PEM", field="tls") from None
    certified = x509.load_pem_x509_certificate(_content(certificate, "--tls-cert")).public_key()
    if key.public_key() != certified:
        raise Invalid(f"--tls-key {path}: is not the key of the certificate {certificate}", field="tls")


def _content(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"{option} {path}: {(error.strerror or str(error)).lower()}", field="tls") from None
