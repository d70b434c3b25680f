"""Errors as `application/problem+json` (RFC 9457), from the reasons, fields and waits that calls already have."""

from __future__ import annotations

import math
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


def not_signed_in(detail: str, **more: Any) -> Problem:
    """Return the error for a caller without a valid token."""
    return Problem(HTTPStatus.UNAUTHORIZED, "unauthenticated", detail, **more)


def forbidden(detail: str, field: str) -> Problem:
    """Return the error for a request that another site may have sent."""
    return Problem(HTTPStatus.FORBIDDEN, "forbidden", detail, field)


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
    headers = {}
    if "retry_s" in problem.more:
        headers["Retry-After"] = str(math.ceil(problem.more["retry_s"]))
    if problem.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(problem.document()), problem.status, headers, MEDIA_TYPE)
