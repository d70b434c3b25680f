"""The caller of a request, by the token in its header or cookie; how much each may use; signing in and out."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import NamedTuple

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from gavel.client.errors import NotAllowed, NotAuthenticated
from gavel.web.bodies import json_body, json_response
from gavel.web.door import check_own_page
from gavel.web.json_messages import to_json
from gavel.web.problems import Problem, not_signed_in
from gavel.web.sessions import TOKEN_CHARS_MAX, Seal
from gavel.web.upstream import IDENTITY_S, Upstream
from protos.extras import DISTRIBUTION
from protos.gavel.v1.limits import is_loopback

# What signs a user in is short, and comes from anyone.
SIGN_IN_BYTES_MAX = 8 * 1024
# Requests of one caller, in the long run and at once: a page makes about one in a second.
REQUESTS_PER_S, REQUESTS_BURST = 100.0, 2000.0
# Streams of one caller at once; a page that is seen has one or two.
STREAMS_MAX = 300
STREAMS_RETRY_S = 10.0
# How many callers are remembered; the one that was silent for longest is forgotten first.
CALLERS_MAX = 10_000
# Browsers attach it to every request until they are closed.
_SAFE = ("GET", "HEAD", "OPTIONS")


class Caller(NamedTuple):
    """The caller's token, empty in single-user mode; and whether the browser sent it, which proves nothing."""

    token: str
    by_cookie: bool


class Limits:
    """How much one caller may use: a token bucket of requests, and a number of open streams.

    A caller is a token; in single-user mode, all are one. Only callers that the scheduler has recognised are counted,
    so that wrong tokens use up nothing of their owner's.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # By caller: how many requests may be made at once, and the time of that count.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._streams = Counter[str]()

    def count_request(self, caller: str) -> None:
        """Count a request; raise Problem if the caller has made too many."""
        now_s = self._now_s()
        left, at_s = self._left.get(caller, (REQUESTS_BURST, now_s))
        left = min(left + (now_s - at_s) * REQUESTS_PER_S, REQUESTS_BURST)
        if left < 1.0:
            retry_s = round((1.0 - left) / REQUESTS_PER_S, 3)
            detail = f"more than {REQUESTS_PER_S:g} requests a second with this token; make fewer"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "too_many", detail, retry_s=retry_s)
        self._left[caller] = left - 1.0, now_s
        self._left.move_to_end(caller)
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)

    def check_streams(self, caller: str) -> None:
        """Raise Problem if the caller may not open another stream."""
        if self._streams[caller] >= STREAMS_MAX:
            detail = f"{STREAMS_MAX} streams are open with this token; close some of them"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "too_many", detail, retry_s=STREAMS_RETRY_S)

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count a stream for as long as it is open."""
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]


class Callers:
    """Finds the caller of each request. `upstream` has the gateway's own token: none in single-user mode."""

    def __init__(self, upstream: Upstream, seal: Seal, cluster_version: Callable[[], str]) -> None:
        self._upstream, self._seal, self._cluster_version = upstream, seal, cluster_version
        self.limits = Limits()
        self.mode = "token" if upstream.connection.token else "code"

    async def enter(self, request: Request) -> Caller:
        """Return the caller of a request, once the scheduler has said whose token it is: nothing is read before.

        Raises Problem if there is none, or if another site may have sent the request.
        """
        caller = self._of(request)
        await self.identity(caller.token)
        self.limits.count_request(caller.token)
        return caller

    async def enter_stream(self, request: Request) -> Caller:
        """Return the caller of a request for a stream, as `enter` does."""
        caller = await self.enter(request)
        self.limits.check_streams(caller.token)
        return caller

    def _of(self, request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is not None:
            return Caller(self._token_of(header), by_cookie=False)
        cookie = request.cookies.get(_cookie_name(request))
        token = self._seal.token_in(cookie) if cookie else None
        if token is None or bool(token) != (self.mode == "token"):
            raise self._not_signed_in("sign in first")
        if request.method not in _SAFE:
            check_own_page(request)
        return Caller(token, by_cookie=True)

    def _token_of(self, header: str) -> str:
        scheme, _, secret = header.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not _is_token(secret):
            raise self._not_signed_in("Authorization: must be `Bearer TOKEN`")
        if self.mode == "token":
            return secret
        if not self._seal.is_code(secret):
            raise self._not_signed_in("this is not the code of this gateway")
        return ""

    def _not_signed_in(self, detail: str) -> Problem:
        return not_signed_in(detail, mode=self.mode)

    # ------------------------------------------------------------------------------------------------ signing in

    async def sign_in(self, request: Request) -> Response:
        """Check a token or the code, and answer with a cookie that contains it."""
        check_own_page(request)
        body = await json_body(request, SIGN_IN_BYTES_MAX)
        secret = body.get(self.mode) if isinstance(body, dict) else None
        if not isinstance(secret, str) or not secret or len(secret) > TOKEN_CHARS_MAX:
            raise Problem(HTTPStatus.BAD_REQUEST, "invalid", f"{self.mode}: must be a text", self.mode)
        token = secret.strip() if self.mode == "token" else ""
        if self.mode == "code" and not self._seal.is_code(secret):
            detail = "this code is not valid (any more): `gavel web` and `gavel up` print the address with the code"
            raise self._not_signed_in(detail)
        if self.mode == "token" and not _is_token(token):
            raise self._not_signed_in("this is not a token: it must be printable ASCII without spaces")
        response = json_response(await self._session(token))
        response.set_cookie(
            _cookie_name(request),
            self._seal.sealed(token),
            path="/",
            httponly=True,
            samesite="strict",
            secure=_is_secure(request),
        )
        return response

    async def session(self, request: Request) -> Response:
        """Answer who the caller is, and which cluster this is."""
        token = self._of(request).token
        session = await self._session(token)
        self.limits.count_request(token)
        return json_response(session)

    async def sign_out(self, request: Request) -> Response:
        """Take the cookie away."""
        check_own_page(request)
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        response.delete_cookie(
            _cookie_name(request), path="/", httponly=True, samesite="strict", secure=_is_secure(request)
        )
        return response

    async def _session(self, token: str) -> dict[str, object]:
        identity = to_json(await self.identity(token, fresh=True))
        cluster = {"address": self._upstream.connection.address, "version": self._cluster_version()}
        return {**identity, "mode": self.mode, "cluster": cluster, "web_version": version(DISTRIBUTION)}

    async def identity(self, token: str, *, fresh: bool = False) -> Message:
        """Return who a token belongs to. Raises Problem if it is not a valid token of a user."""
        await self._upstream.check_own()
        try:
            identity: Message = await self._upstream.identity(token, 0.0 if fresh else IDENTITY_S)
            return identity
        except NotAllowed:
            raise self._not_signed_in(
                "this token belongs to an agent, not to a user; `gavel token create` makes one for you"
            ) from None
        except NotAuthenticated as error:
            raise self._not_signed_in(f"{error.message}; `gavel token create` makes another") from None


def _is_token(text: str) -> bool:
    return 0 < len(text) <= TOKEN_CHARS_MAX and all(32 < ord(letter) < 127 for letter in text)


def _is_secure(request: Request) -> bool:
    """Return whether cookies are for TLS only: always, except on this machine without TLS."""
    return request.url.scheme == "https" or not is_loopback(request.headers.get("host", ""))


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie. On this machine, gateways on several ports share one jar of cookies."""
    if _is_secure(request):
        return "__Host-gavel"
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"gavel-{port if port.isdigit() else 80}"
