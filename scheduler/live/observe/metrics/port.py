"""The port from which Prometheus scrapes: HTTP/1.1, one page, read-only.

Without TLS it is for this machine alone, needs no token, and answers only requests that name this machine as their
host: a page in a user's browser could otherwise read it under a name of its own. With TLS, requests need the token of a
viewer. The text is made at most once a second, however many ask.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from protos.gavel.v1.limits import is_loopback
from scheduler.live.access.auth import Recognise
from scheduler.live.access.limits import NamedSlots
from scheduler.live.access.roles import Role
from scheduler.live.access.status import FORBIDDEN, TOO_MANY, UNAUTHENTICATED, CallFailed
from scheduler.live.observe.metrics.families import OPENMETRICS, TEXT

log = logging.getLogger(__name__)

PATH = "/metrics"
# The longest head of a request.
HEAD_BYTES_MAX = 16 * 1024
# How long a connection may take for a request, and how long it may stay open before the next one.
REQUEST_S, IDLE_S = 10.0, 130.0
# How long a client may take to read an answer.
WRITE_S = 20.0
CONNECTIONS_MAX, CONNECTIONS_EACH_MAX = 64, 16
# How long a text is served again.
FRESH_S = 1.0
_STATUS = {
    UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    FORBIDDEN: HTTPStatus.FORBIDDEN,
    TOO_MANY: HTTPStatus.TOO_MANY_REQUESTS,
}
_PLAIN = "text/plain; charset=utf-8"


class _Request(NamedTuple):
    method: str
    path: str
    # By name in lower case.
    headers: dict[str, str]


class _Refused(Exception):
    """The answer to a request that gets no metrics."""

    def __init__(self, status: HTTPStatus, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class MetricsPort:
    """Serves the text of the metrics. `render(openmetrics)` makes it."""

    def __init__(
        self,
        render: Callable[[bool], str],
        recognise: Recognise | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`recognise`: identifies the caller by the token. Without it, the port must be on loopback."""
        self._render, self._recognise, self._tls = render, recognise, tls
        self._servers: list[asyncio.Server] = []
        self._slots = NamedSlots(CONNECTIONS_MAX, CONNECTIONS_EACH_MAX)
        self._open: set[asyncio.Task[None]] = set()
        # By format: the text, and when it was made.
        self._texts: dict[bool, tuple[bytes, float]] = {}

    async def open(self, host: str, port: int) -> int:
        """Listen on this address, and return the port, which the system chooses for 0; raise OSError on failure.

        A name such as localhost may stand for several addresses, which get the same port.
        """
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for address in dict.fromkeys(str(entry[4][0]) for entry in resolved):
            try:
                server = await asyncio.start_server(
                    self._accept, address, port, limit=HEAD_BYTES_MAX, reuse_address=True
                )
            except OSError as error:
                # Names have addresses of IPv6 also on machines without it.
                if self._servers and error.errno == errno.EADDRNOTAVAIL:
                    continue
                await self.close()
                raise
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Close the port and all connections."""
        for server in self._servers:
            server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, task = str((writer.get_extra_info("peername") or ("",))[0]), asyncio.current_task()
        assert task is not None
        try:
            self._slots.take(host)
        except CallFailed:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            if self._tls is not None:
                # Only now, so that connections without a handshake take slots, too.
                await writer.start_tls(self._tls, ssl_handshake_timeout=REQUEST_S)
            await self._serve(reader, writer, f"ipv{6 if ':' in host else 4}:{host}:0")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The client has left, or was too slow.
            pass
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio would log it as an error.
            pass
        except Exception:
            log.exception("a request for metrics failed")
        finally:
            self._open.discard(task)
            self._slots.release(host)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Answer the requests of one connection, one after another."""
        wait_s, stays = REQUEST_S, True
        while stays:
            async with asyncio.timeout(wait_s):
                first = await reader.read(1)
            if not first:
                return
            async with asyncio.timeout(REQUEST_S):
                try:
                    head = first + await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = b""
            status, headers, body = HTTPStatus.OK, dict[str, str](), b""
            is_head = head.startswith(b"HEAD ")
            try:
                request = _parsed(head)
                # A client that was admitted may keep its connection between two scrapes.
                stays = request.headers.get("connection", "").lower() != "close"
                headers["Content-Type"], body = await self._answer(request, peer)
                wait_s = IDLE_S
            except _Refused as refused:
                stays, status = False, refused.status
                headers = {"Content-Type": _PLAIN, **refused.headers}
                body = f"{refused.text}\n".encode()
            headers["Connection"] = "keep-alive" if stays else "close"
            async with asyncio.timeout(WRITE_S):
                writer.write(_head(status, headers, len(body)) + (b"" if is_head else body))
                await writer.drain()
        # Unread bytes would reset the connection, and the client might lose the answer.
        writer.write_eof() if writer.can_write_eof() else writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_S):
                while await reader.read(HEAD_BYTES_MAX):
                    pass

    async def _answer(self, request: _Request, peer: str) -> tuple[str, bytes]:
        """Return the type and the text of the page; raise _Refused if there is none for this request."""
        await self._admit(request, peer)
        if request.path != PATH:
            raise _Refused(HTTPStatus.NOT_FOUND, f"the metrics are at {PATH}")
        if request.method not in ("GET", "HEAD"):
            raise _Refused(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{PATH} can only be read: use GET", Allow="GET, HEAD"
            )
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        return (OPENMETRICS if openmetrics else TEXT), self._text(openmetrics)

    async def _admit(self, request: _Request, peer: str) -> None:
        if self._recognise is None:
            host = request.headers.get("host", "")
            if not is_loopback(host):
                text = f"the host '{host[:100]}' in the request is not this machine"
                remedy = (
                    "use 127.0.0.1, or set metrics_listen to an address of the network, with TLS and tokens"
                )
                raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, f"{text}; {remedy}")
            return
        try:
            caller = await self._recognise(request.headers, peer)
            if not caller.may(Role.VIEWER):
                raise CallFailed(FORBIDDEN, "reading metrics needs the role viewer")
        except CallFailed as error:
            status = _STATUS.get(error.reason, HTTPStatus.SERVICE_UNAVAILABLE)
            headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
            if error.retry_s is not None:
                headers["Retry-After"] = str(max(round(error.retry_s), 1))
            raise _Refused(status, error.text, **headers) from None

    def _text(self, openmetrics: bool) -> bytes:
        now_s = asyncio.get_running_loop().time()
        text, made_s = self._texts.get(openmetrics, (b"", float("-inf")))
        if now_s - made_s >= FRESH_S:
            text = self._render(openmetrics).encode()
            self._texts[openmetrics] = text, now_s
        return text


def _parsed(head: bytes) -> _Request:
    """Parse the head of a request; raise _Refused if it is not one that Prometheus or a browser would send."""
    malformed = _Refused(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
    if not head:
        text = f"the head of the request has more than {HEAD_BYTES_MAX:,} bytes"
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise malformed
    headers = dict[str, str]()
    for field in lines:
        name, colon, value = field.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in headers:
            raise malformed
        headers[name.lower()] = value.strip()
    # What follows the head is the next request: a body would be taken for one.
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise _Refused(HTTPStatus.BAD_REQUEST, "a request for metrics has no body")
    if words[2] == "HTTP/1.0":
        headers["connection"] = "close"
    return _Request(words[0], words[1].partition("?")[0], headers)


def _head(status: HTTPStatus, headers: dict[str, str], length: int) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    lines += (
        f"Content-Length: {length}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "",
        "",
    )
    return "\r\n".join(lines).encode("latin-1")
