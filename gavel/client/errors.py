"""What can go wrong between you and the scheduler.

GavelError
├── NotReachable         nobody answered: not started, another address, the network, too slow
├── NotAuthenticated     the scheduler does not know who you are: no token, or one that is unknown, expired, revoked
├── NotAllowed           it knows you, and your role does not allow this
├── NotFound             there is no such job, node or token
├── Invalid              something you gave cannot be right; `field` names it
│   └── InvalidJob       a job; with `file`, `line` and `field`, as far as they are known
├── Conflict             the idempotency key was used for another submission, or a stream was read too slowly
├── Refused              right in itself, and not possible as things stand: a job that has ended cannot be held
├── TooMany              a limit of yours is reached; `retry_s` says when it may be better
└── ServerError          a fault of the scheduler, or one that speaks another version of the protocol

All of them carry `reason`, a stable code for programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

DETAILS = "grpc-status-details-bin"
DOMAIN = "gavel"
UNAVAILABLE = (
    "unavailable"  # the scheduler is there, and what was asked for is not: logs of a node that is away
)


# Somebody answers, and wants to be called another way: asking again does not help.
TLS = "tls"


class GavelError(Exception):
    """Anything that a call can end with."""

    def __init__(
        self, message: str, *, reason: str = "", field: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_s = retry_s


class NotReachable(GavelError):
    """Nobody answered."""


class NotAuthenticated(GavelError):
    """The scheduler does not know who you are."""


class NotAllowed(GavelError):
    """Your role does not allow this."""


class NotFound(GavelError):
    """There is no such thing."""


class Invalid(GavelError):
    """Something you gave cannot be right."""


class InvalidJob(Invalid):
    """A job that cannot be right. The message begins with file, line and field, as far as they are known."""

    def __init__(
        self,
        problem: str,
        *,
        field: str = "",
        file: str = "",
        line: int | None = None,
        reason: str = "invalid",
    ) -> None:
        where = [file, f"line {line}" if line else "", field]
        super().__init__(": ".join([part for part in where if part] + [problem]), reason=reason, field=field)
        self.problem = problem
        self.file = file
        self.line = line
        self.more: tuple[InvalidJob, ...] = ()  # Other faults in the same job, each with its own line.


class Conflict(GavelError):
    """The same key with other jobs, or a stream that was read too slowly."""


class Refused(GavelError):
    """Not possible as things stand."""


class TooMany(GavelError):
    """A limit of yours is reached."""


class ServerError(GavelError):
    """A fault of the scheduler."""


_Code = grpc.StatusCode
_KINDS: dict[Any, type[GavelError]] = {
    _Code.UNAVAILABLE: NotReachable,
    _Code.DEADLINE_EXCEEDED: NotReachable,
    _Code.UNAUTHENTICATED: NotAuthenticated,
    _Code.PERMISSION_DENIED: NotAllowed,
    _Code.NOT_FOUND: NotFound,
    _Code.INVALID_ARGUMENT: Invalid,
    _Code.OUT_OF_RANGE: Invalid,
    _Code.ALREADY_EXISTS: Conflict,
    _Code.ABORTED: Conflict,
    _Code.FAILED_PRECONDITION: Refused,
    _Code.RESOURCE_EXHAUSTED: TooMany,
}


def error_of(
    code: Any, text: str, metadata: Iterable[tuple[str, Any]], address: str, *, tls: bool = False
) -> GavelError:
    """What a gRPC status says, as one of ours. `metadata`: what came behind the answer. `tls`: how we connected."""
    reason, field, retry_s = _details(metadata)
    kind = Refused if reason == UNAVAILABLE else _KINDS.get(code, ServerError)
    if kind is NotReachable and not reason and (wrong := _wrong_setup(text, address, tls)):
        return NotReachable(wrong, reason=TLS)
    if kind is NotReachable and not reason:  # nobody of ours said this: the network did
        return NotReachable(_unreachable(code, text, address), reason="unreachable")
    if code is _Code.UNIMPLEMENTED:
        text = f"the scheduler at {address} does not know this call: it is of another version ({text})"
    if code is _Code.RESOURCE_EXHAUSTED and not reason:  # gRPC's own: a message beyond its limit
        return Invalid(f"too large for one call: {text}", reason="too_large")
    return kind(text or str(code), reason=reason or "unknown", field=field, retry_s=retry_s)


_CUT_OFF = ("socket closed", "reset by peer", "end of tcp stream", "broken pipe")


def _wrong_setup(text: str, address: str, tls: bool) -> str:
    """What is wrong with how we connect, where somebody answers who wants it another way; empty: nothing we know of."""
    lowered = text.lower()
    if "certificate_verify_failed" in lowered:
        return (
            f"no secure connection to {address}: its certificate is not of an authority that we trust; is the CA file "
            "that of this scheduler? GAVEL_CA has to name a copy of its tls/ca.pem"
        )
    if "is not in peer certificate" in lowered or "hostname verification" in lowered:
        return (
            f"no secure connection to {address}: its certificate is for other names; call it by one of those, or make "
            "one for this name there (`gavel init --renew --host NAME`)"
        )
    if tls and ("wrong_version_number" in lowered or "http_request" in lowered):
        return (
            f"no secure connection to {address}: what answers there does not speak TLS; is the port right? A scheduler "
            "without TLS is called without GAVEL_CA"
        )
    if "failed to connect" in lowered and any(sign in lowered for sign in _CUT_OFF):
        if tls:
            return (
                f"no secure connection to {address}: it hangs up; is that the port for agents? People have another, "
                "the one before it unless it was set (`listen`)"
            )
        return (
            f"something answers at {address}, and hangs up on a connection without TLS: set GAVEL_CA to a copy of the "
            "scheduler's tls/ca.pem, or `gavel login --ca`"
        )
    return ""


def _unreachable(code: Any, text: str, address: str) -> str:
    if code is _Code.DEADLINE_EXCEEDED:
        return f"the scheduler at {address} did not answer in time"
    lowered = text.lower()
    if "ssl" in lowered or "certificate" in lowered or "handshake" in lowered or "tls" in lowered:
        return (
            f"no secure connection to {address}: is the CA file that of this scheduler, and the name its own?"
        )
    if "refused" in lowered:
        return f"no scheduler answers at {address}: the connection was refused"
    if "resol" in lowered or "dns" in lowered or "name" in lowered.split():
        return f"no scheduler answers at {address}: the name of the host is not known"
    return f"no scheduler answers at {address}"


def _details(metadata: Iterable[tuple[str, Any]]) -> tuple[str, str, float | None]:
    """Reason, field and when to try again, from google.rpc details; those of other domains are not ours to read."""
    reason, field, retry_s = "", "", None
    for key, value in metadata:
        if key != DETAILS or not isinstance(value, bytes):
            continue
        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
        except Exception:  # a proxy's, or damaged: then there are no details
            return reason, field, retry_s
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            request = error_details_pb2.BadRequest()
            wait = error_details_pb2.RetryInfo()
            if detail.Unpack(info) and info.domain == DOMAIN:
                reason = info.reason
            elif detail.Unpack(request) and request.field_violations:
                field = request.field_violations[0].field
            elif detail.Unpack(wait):
                retry_s = wait.retry_delay.ToNanoseconds() / 1e9
    return reason, field, retry_s
