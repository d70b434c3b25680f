"""The errors that calls to the scheduler raise.

GavelError
├── NotReachable         no reply: the scheduler is stopped, slow or at another address, or the network fails
├── NotAuthenticated     the token is missing, unknown, expired or revoked
├── NotAllowed           the user's role does not allow this
├── NotFound             no such job, node or token exists
├── Invalid              an argument is wrong; `field` names it
│   └── InvalidJob       a job's description is wrong; with `file`, `line` and `field` if known
├── Conflict             the idempotency key was used for other jobs, or a stream was read too slowly
├── Refused              not possible in the present state, such as holding a job that has ended
├── TooMany              the user has reached a limit; `retry_s`, if set, is the time until the next try
└── ServerError          the scheduler has a fault, or uses another version of the protocol

All of them have `reason`, a stable code for programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DETAILS = "grpc-status-details-bin"
DOMAIN = "gavel"
# The scheduler answers, but cannot reach what the call needs, such as the logs of a node that is away.
UNAVAILABLE = "unavailable"
# A server answers, but the client's TLS settings do not match the server's: retrying does not help.
TLS = "tls"
# There is no answer yet: the network drops packets, or the call takes long.
SILENT = "silent"


class GavelError(Exception):
    """The base of all errors that a call raises."""

    def __init__(
        self, message: str, *, reason: str = "", field: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_s = retry_s


class NotReachable(GavelError):
    """The scheduler did not answer."""


class NotAuthenticated(GavelError):
    """The token is missing, unknown, expired or revoked."""


class NotAllowed(GavelError):
    """The user's role does not allow this."""


class NotFound(GavelError):
    """No such job, node or token exists."""


class Invalid(GavelError):
    """An argument is wrong; `field` names it."""


class InvalidJob(Invalid):
    """A job's description is wrong. The message begins with file, line and field, if known."""

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
        # Other faults in the same job, each with its own line.
        self.more: tuple[InvalidJob, ...] = ()


class Conflict(GavelError):
    """The idempotency key was used for other jobs, or a stream was read too slowly."""


class Refused(GavelError):
    """The call is not possible in the present state."""


class TooMany(GavelError):
    """The user has reached a limit."""


class ServerError(GavelError):
    """The scheduler has a fault, or uses another version of the protocol."""


# The errors, by the names of the codes of gRPC.
_KINDS: dict[str, type[GavelError]] = {
    "UNAVAILABLE": NotReachable,
    "DEADLINE_EXCEEDED": NotReachable,
    "UNAUTHENTICATED": NotAuthenticated,
    "PERMISSION_DENIED": NotAllowed,
    "NOT_FOUND": NotFound,
    "INVALID_ARGUMENT": Invalid,
    "OUT_OF_RANGE": Invalid,
    "ALREADY_EXISTS": Conflict,
    "ABORTED": Conflict,
    "FAILED_PRECONDITION": Refused,
    "RESOURCE_EXHAUSTED": TooMany,
}


def error_of(
    code: Any, text: str, metadata: Iterable[tuple[str, Any]], address: str, *, tls: bool = False
) -> GavelError:
    """Return the GavelError for a gRPC status with its trailing metadata; `tls`: the connection used TLS."""
    reason, field, retry_s = _details(metadata)
    kind = Refused if reason == UNAVAILABLE else _KINDS.get(code.name, ServerError)
    if kind is NotReachable and not reason and (problem := _tls_mismatch(text, address, tls)):
        return NotReachable(problem, reason=TLS)
    # A status without a reason comes from gRPC or the network, not from a scheduler.
    if kind is NotReachable and not reason:
        return NotReachable(_unreachable(code, text, address), reason="unreachable")
    if code.name == "UNIMPLEMENTED":
        text = f"the scheduler at {address} does not offer this call: it has another version ({text})"
    # Without a reason this is gRPC's own limit on the size of messages.
    if code.name == "RESOURCE_EXHAUSTED" and not reason:
        return Invalid(f"too large for one call: {text}", reason="too_large")
    return kind(text or str(code), reason=reason or "unknown", field=field, retry_s=retry_s)


# Texts of gRPC for a server that closed the connection.
_CLOSED = ("socket closed", "reset by peer", "end of tcp stream", "broken pipe")


def _tls_mismatch(text: str, address: str, tls: bool) -> str:
    """Return how the TLS settings of client and server differ; empty if gRPC's text shows no difference."""
    lowered = text.lower()
    if "certificate_verify_failed" in lowered:
        return (
            f"no secure connection to {address}: its certificate was not issued by a trusted authority; "
            "GAVEL_CA must name a copy of this scheduler's tls/ca.pem"
        )
    if "is not in peer certificate" in lowered or "hostname verification" in lowered:
        return (
            f"no secure connection to {address}: its certificate is for other names; use one of those, or add this "
            "name on the scheduler's machine (`gavel init --renew --host NAME`)"
        )
    if tls and ("wrong_version_number" in lowered or "http_request" in lowered):
        return (
            f"no secure connection to {address}: the server there does not speak TLS; check the port, or unset "
            "GAVEL_CA if this scheduler has no TLS"
        )
    if "failed to connect" in lowered and any(sign in lowered for sign in _CLOSED):
        if tls:
            return (
                f"no secure connection to {address}: it closed the connection; is this the port for agents? The port "
                "for users is one lower, unless the scheduler's `listen` sets another"
            )
        return (
            f"the server at {address} refuses connections without TLS; set GAVEL_CA to a copy of the scheduler's "
            "tls/ca.pem, or use `gavel login --ca`"
        )
    return ""


def _unreachable(code: Any, text: str, address: str) -> str:
    if code.name == "DEADLINE_EXCEEDED":
        return f"the scheduler at {address} did not answer in time"
    lowered = text.lower()
    if "ssl" in lowered or "certificate" in lowered or "handshake" in lowered or "tls" in lowered:
        return (
            f"no secure connection to {address}; check that the CA file is this scheduler's, and that its "
            "certificate includes this name"
        )
    if "refused" in lowered:
        return f"no scheduler answers at {address}: the connection was refused"
    if "resol" in lowered or "dns" in lowered or "name" in lowered.split():
        return f"no scheduler answers at {address}: the host name is unknown"
    return f"no scheduler answers at {address}"


def _details(metadata: Iterable[tuple[str, Any]]) -> tuple[str, str, float | None]:
    """Return reason, field and wait in seconds from google.rpc details, without reasons of other domains."""
    reason, field, retry_s = "", "", None
    for key, value in metadata:
        if key != DETAILS or not isinstance(value, bytes):
            continue
        from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
        # The details are damaged, or a proxy wrote them in another format.
        except Exception:
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
