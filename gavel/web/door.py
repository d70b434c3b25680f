"""The checks that every request passes: its host, its origin, its size and its time; and the headers of every answer.

**Host.** A web page of another site can give its own name this machine's address, and would then be of the same origin
as we are. So only the names that are ours are answered.

**Origin.** A cookie is sent by the browser, whichever page makes the request. So a request that may change something,
and that has no token of its own, must come from our own page: the browser says so in Sec-Fetch-Site, which pages cannot
set, and our page adds X-Gavel, which pages of other sites cannot add without a permission that we never give.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gavel.client.errors import GavelError
from gavel.web import problems
from gavel.web.bodies import BODY_BYTES_MAX
from gavel.web.problems import Problem, forbidden
from protos.gavel.v1.limits import is_loopback

log = logging.getLogger(__name__)

HEADERS_BYTES_MAX = 16 * 1024
# How many requests may be in progress, streams included. There is always a connection left for one that is refused.
REQUESTS_MAX = 900
# How long a request may take to arrive.
BODY_S = 60.0
OURS = "X-Gavel"
CSP = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"),
        *(
            "font-src 'self'",
            "manifest-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Door:
    """The middleware around the application. `names`: the host names of this gateway besides those of loopback."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        # With an application in the scope, Starlette raises errors about addresses and methods.
        scope["app"] = self
        self._requests += 1
        try:
            self._check(Headers(scope=scope))
            await self._app(scope, _Body(scope, receive), send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            problem = _problem_of(error)
            if has_begun:
                raise
            await problems.response(problem)(scope, receive, send_with_headers)
        finally:
            self._requests -= 1

    def _check(self, headers: Headers) -> None:
        if self._requests > REQUESTS_MAX:
            detail = f"more than {REQUESTS_MAX} requests are in progress"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too_many", detail, retry_s=problems.RETRY_S)
        # A proxy that goes by the other one of the two would see another end of this request than we do.
        if "transfer-encoding" in headers and "content-length" in headers:
            raise problems.not_http("Content-Length and Transfer-Encoding exclude each other")
        if sum(len(name) + len(value) for name, value in headers.raw) > HEADERS_BYTES_MAX:
            detail = f"the headers are larger than {HEADERS_BYTES_MAX // 1024} KiB"
            raise Problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", detail)
        host = headers.get("host", "")
        if not self._is_ours(host):
            detail = f"Host: '{host[:100]}' is no name of this gateway; `gavel web --name NAME` adds one"
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, "misdirected", detail, "Host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise forbidden(f"Origin: '{origin[:100]}' is another site", "Origin")
        # What another site cannot read it need not request, either.
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            raise forbidden("Sec-Fetch-Site: is cross-site, must be same-origin", "Sec-Fetch-Site")

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header, with or without a port, names this gateway.

        The port may differ from ours, as it does through an SSH tunnel.
        """
        name, colon, port = host.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()):
            name = host
        return name.lower() in self._names or is_loopback(name.lower())


def _problem_of(error: Exception) -> Problem:
    """Return the problem to answer with. An unexpected error becomes a number under which it is logged."""
    match error:
        case Problem():
            return error
        case GavelError():
            return problems.problem_of(error)
        case HTTPException():
            return Problem(HTTPStatus(error.status_code), "not_found", "there is no such address")
    number = secrets.token_hex(4)
    log.error("internal error %(number)s", {"number": number}, exc_info=error)
    detail = f"an internal error; the gateway's log has it as {number}"
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)


def check_own_page(request: Request) -> None:
    """Raise Problem unless the browser says that our own page makes this request."""
    site = request.headers.get("sec-fetch-site")
    if site != "same-origin":
        raise forbidden(
            f"Sec-Fetch-Site: is '{(site or '')[:40]}', must be same-origin; programs send a token, not a cookie",
            "Sec-Fetch-Site",
        )
    if request.headers.get(OURS) != "1":
        raise forbidden(f"{OURS}: is missing, must be 1", OURS)


class _Body:
    """The body of a request, which must not be too large or take too long."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive, self._bytes, self._ended = receive, 0, False
        self._length = Headers(scope=scope).get("content-length", "")
        self._until_s = asyncio.get_running_loop().time() + BODY_S

    async def __call__(self) -> Message:
        # After its end, only the news that the browser has left arrives here.
        if self._ended:
            return await self._receive()
        # uvicorn has checked that it is a number.
        if self._length and int(self._length) > BODY_BYTES_MAX:
            raise problems.too_large(BODY_BYTES_MAX)
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            detail = f"the body did not arrive within {BODY_S:g} s"
            raise Problem(HTTPStatus.REQUEST_TIMEOUT, "timeout", detail) from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > BODY_BYTES_MAX:
            raise problems.too_large(BODY_BYTES_MAX)
        self._ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message
