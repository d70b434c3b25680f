"""Errors as gRPC statuses: a code, and details for programs.

Every failure carries google.rpc.ErrorInfo with a stable reason in the domain "gavel", google.rpc.BadRequest with the
path of the field at fault, and google.rpc.RetryInfo if a retry can succeed.

WARNING: users' programs read the reasons. A released reason keeps its meaning.
"""

from __future__ import annotations

import logging
import secrets

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from policies.errors import PolicyError
from scheduler.model.errors import InvalidSpec, KeyReused, NotFound, Refused

log = logging.getLogger(__name__)

DOMAIN = "gavel"
# A status travels in headers, which are small.
TEXT_CHARS_MAX = 2000

INVALID, NOT_FOUND, KEY_REUSED, REFUSED = "invalid", "not_found", "key_reused", "refused"
STOPPING, INTERNAL, SLOW_READER, UNAVAILABLE = "stopping", "internal", "slow_reader", "unavailable"
UNIMPLEMENTED, OUTDATED = "unimplemented", "outdated"
UNAUTHENTICATED, FORBIDDEN, TOO_MANY = "unauthenticated", "forbidden", "too_many"

_CODES: dict[str, int] = {
    INVALID: code_pb2.INVALID_ARGUMENT,
    NOT_FOUND: code_pb2.NOT_FOUND,
    KEY_REUSED: code_pb2.ALREADY_EXISTS,
    REFUSED: code_pb2.FAILED_PRECONDITION,
    STOPPING: code_pb2.UNAVAILABLE,
    UNAVAILABLE: code_pb2.UNAVAILABLE,
    INTERNAL: code_pb2.INTERNAL,
    UNIMPLEMENTED: code_pb2.UNIMPLEMENTED,
    SLOW_READER: code_pb2.ABORTED,
    OUTDATED: code_pb2.ABORTED,
    UNAUTHENTICATED: code_pb2.UNAUTHENTICATED,
    FORBIDDEN: code_pb2.PERMISSION_DENIED,
    TOO_MANY: code_pb2.RESOURCE_EXHAUSTED,
}


class CallFailed(Exception):
    """The error that ends a call. `reason` is one of the constants above."""

    def __init__(self, reason: str, text: str, field: str = "", retry_s: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.field = field
        self.retry_s = retry_s


def failure(error: Exception) -> CallFailed:
    """Return the error that the caller receives. An unexpected error becomes a number under which it is logged."""
    # Imported late: settings need CallFailed, and should not load the whole scheduler with it.
    from scheduler.live.feed import FellBehind
    from scheduler.live.world import CallRefused

    match error:
        case CallFailed():
            return error
        case CallRefused():
            reason = error.code if error.code in _CODES else REFUSED
            return CallFailed(reason, str(error), error.field, 2.0 if reason == STOPPING else None)
        case InvalidSpec():
            return CallFailed(INVALID, str(error), error.field)
        case NotFound():
            return CallFailed(NOT_FOUND, str(error))
        case KeyReused():
            return CallFailed(KEY_REUSED, str(error), "idempotency_key")
        case Refused():
            return CallFailed(REFUSED, str(error))
        case PolicyError():
            return CallFailed(INVALID, str(error), "policy")
        # A method of gRPC's own services, such as Health.List.
        case NotImplementedError():
            return CallFailed(UNIMPLEMENTED, "this release does not serve this method")
        case FellBehind():
            return CallFailed(SLOW_READER, "the reader was too slow and has missed messages: begin again")
    number = secrets.token_hex(4)
    log.error("internal error %(number)s", {"number": number}, exc_info=error)
    return CallFailed(INTERNAL, f"an internal error; the scheduler's log has it as {number}")


def status_of(failed: CallFailed) -> grpc.Status:
    """Return the gRPC status that ends a call with this error."""
    text = failed.text if len(failed.text) <= TEXT_CHARS_MAX else failed.text[: TEXT_CHARS_MAX - 1] + "…"
    details: list[AnyMessage] = [_packed(error_details_pb2.ErrorInfo(reason=failed.reason, domain=DOMAIN))]
    if failed.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=failed.field[:TEXT_CHARS_MAX], description=text.removeprefix(f"{failed.field}: ")
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if failed.retry_s is not None:
        wait = Duration()
        wait.FromNanoseconds(int(failed.retry_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=wait)))
    status = status_pb2.Status(code=_CODES[failed.reason], message=text, details=details)
    converted: grpc.Status = rpc_status.to_status(status)
    return converted


def _packed(message: object) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed
