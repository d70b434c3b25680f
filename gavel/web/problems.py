"""Errors as `application/problem+json` (RFC 9457), from the reasons, fields and waits that calls already have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from gavel.client import errors as e

MEDIA_TYPE = "application/problem+json"
_STATUS: dict[type[e.GavelError], HTTPStatus] = {
    e.NotReachable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NotAuthenticated: HTTPStatus.UNAUTHORIZED,
    e.NotAllowed: HTTPStatus.FORBIDDEN,
    e.NotFound: HTTPStatus.NOT_FOUND,
    e.Invalid: HTTPStatus.BAD_REQUEST,
    e.Conflict: HTTPStatus.CONFLICT,
    e.Refused: HTTPStatus.CONFLICT,
    e.TooMany: HTTPStatus.TOO_MANY_REQUESTS,
    e.ServerError: HTTPStatus.BAD_GATEWAY,
}
# When to try again if the scheduler does not answer.
RETRY_S = 2.0


class Problem(Exception):
    """An error that the gateway itself answers. `field` names the header, parameter or field at fault."""

    # Headers of the answer.
    headers: Mapping[str, str] = {}

    def __init__(self, status: HTTPStatus, reason: str, detail: str, field: str = "", **more: Any) -> None:
        super().__init__(detail)
        self.status, self.reason, self.detail, self.field, self.more = status, reason, detail, field, more

    def document(self) -> dict[str, Any]:
        """Return the members of the document."""
        members = {"field": self.field} if self.field else {}
        return {
            "type": f"urn:gavel:{self.reason}",
            "title": self.status.phrase,
            "status": int(self.status),
            "reason": self.reason,
            "detail": self.detail,
            **members,
            **self.more,
        }

    def encoded(self) -> bytes:
        """Return the document as JSON."""
        return msgspec.json.encode(self.document())


def not_signed_in(detail: str, **more: Any) -> Problem:
    """Return the error for a caller without a valid token."""
    return Problem(HTTPStatus.UNAUTHORIZED, "unauthenticated", detail, **more)


def forbidden(detail: str, field: str) -> Problem:
    """Return the error for a request that another site may have sent."""
    return Problem(HTTPStatus.FORBIDDEN, "forbidden", detail, field)


def too_large(size_max: int) -> Problem:
    """Return the error for a body of more bytes than `size_max`."""
    text = f"{size_max // 2**20} MiB" if size_max >= 2**20 else f"{size_max // 1024} KiB"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"the body is larger than {text}")


def not_http(detail: str = "this is not a valid request of HTTP/1.1") -> Problem:
    """Return the error for a request whose end cannot be told for sure: its connection must be closed."""
    problem = Problem(HTTPStatus.BAD_REQUEST, "invalid", detail)
    problem.headers = {"Connection": "close"}
    return problem


def not_allowed(verb: str, allowed: str) -> Problem:
    """Return the error for a verb that an address does not have."""
    detail = f"{verb}: is not possible at this address, only {allowed}"
    problem = Problem(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    problem.headers = {"Allow": allowed}
    return problem


def problem_of(error: e.GavelError) -> Problem:
    """Return the error of a call as a problem."""
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    retry_s = error.retry_s
    # The scheduler answers, but what the call needs is away: the logs of a silent node, for example.
    if isinstance(error, e.Refused) and error.reason == e.UNAVAILABLE:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    if status is HTTPStatus.SERVICE_UNAVAILABLE and retry_s is None:
        retry_s = RETRY_S
    more: dict[str, Any] = {} if retry_s is None else {"retry_s": retry_s}
    if isinstance(error, e.InvalidJob) and error.line is not None:
        more["line"] = error.line
    return Problem(
        status, error.reason or status.phrase.lower().replace(" ", "_"), error.message, error.field, **more
    )


def response(problem: Problem) -> Response:
    """Return a problem as an HTTP response."""
    headers = dict(problem.headers)
    if "retry_s" in problem.more:
        headers["Retry-After"] = str(math.ceil(problem.more["retry_s"]))
    if problem.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(problem.encoded(), problem.status, headers, MEDIA_TYPE)
