"""A gRPC status becomes one of our errors: kind, reason, field, and a message that helps."""

import grpc
import pytest

from gavel.client import errors as e
from gavel.client.jobs.errors import file_field, with_place
from gavel.client.jobs.spec import JobSpec, Source
from gavel.client.transport.retry import Patience
from scheduler.live.access import status as live_status
from scheduler.live.access.status import CallFailed, status_of
from tests.support.wording import Wording

Code = grpc.StatusCode
HERE = "127.0.0.1:7070"


def error_from(failed: CallFailed) -> e.GavelError:
    """Return the error that a client raises for this failure of a call."""
    status = status_of(failed)
    return e.error_of(status.code, status.details, status.trailing_metadata, HERE)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (live_status.INVALID, e.Invalid),
        (live_status.NOT_FOUND, e.NotFound),
        (live_status.KEY_REUSED, e.Conflict),
        (live_status.REFUSED, e.Refused),
        (live_status.STOPPING, e.NotReachable),
        (live_status.UNAVAILABLE, e.Refused),
        (live_status.INTERNAL, e.ServerError),
        (live_status.SLOW_READER, e.Conflict),
        (live_status.UNAUTHENTICATED, e.NotAuthenticated),
        (live_status.FORBIDDEN, e.NotAllowed),
        (live_status.TOO_MANY, e.TooMany),
    ],
)
def test_every_reason_of_the_scheduler_has_its_kind(reason: str, kind: type[e.GavelError]) -> None:
    """The error has the kind of its reason, and the field and waiting time that were sent."""
    error = error_from(CallFailed(reason, "a message", "policy", 2.5))
    assert (kind, reason, "policy", 2.5) == (type(error), error.reason, error.field, error.retry_s)
    assert str(error) == "a message"


@pytest.mark.parametrize(
    ("code", "text", "kind", "part"),
    [
        (Code.UNAVAILABLE, "connect: Connection refused (111)", e.NotReachable, HERE),
        (Code.UNAVAILABLE, "DNS resolution failed", e.NotReachable, HERE),
        (Code.UNAVAILABLE, "Ssl handshake failed", e.NotReachable, HERE),
        (Code.UNAVAILABLE, "Socket closed", e.NotReachable, HERE),
        (Code.DEADLINE_EXCEEDED, "x", e.NotReachable, HERE),
        (Code.UNIMPLEMENTED, "Method not found!", e.ServerError, ""),
        (Code.RESOURCE_EXHAUSTED, "Sent message larger than max", e.Invalid, ""),
        (Code.UNKNOWN, "boom", e.ServerError, "boom"),
        (Code.CANCELLED, "", e.ServerError, "CANCELLED"),
    ],
    ids=["refused", "unknown host", "TLS", "closed", "late", "unknown call", "large", "unknown", "cancelled"],
)
def test_a_status_of_grpc_itself(
    code: Code, text: str, kind: type[e.GavelError], part: str, wording: Wording
) -> None:
    """A status that no scheduler sent is about the network, and the message names the address."""
    error = e.error_of(code, text, (), HERE)
    assert type(error) is kind
    assert part in str(error)
    wording(error)


CONNECTING = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7070: Socket closed"


@pytest.mark.parametrize(
    ("text", "tls", "setting"),
    [
        (CONNECTING, False, "GAVEL_CA"),
        (CONNECTING, True, "agents"),
        ("Tls handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", True, "TLS"),
        ("Tls handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: self signed", True, "tls/ca.pem"),
        ("Hostname Verification Check failed: peer name x is not in peer certificate", True, "--host"),
    ],
    ids=["no TLS here", "port of agents", "no TLS there", "another CA", "another name"],
)
def test_a_wrong_way_to_connect_names_the_setting(
    text: str, tls: bool, setting: str, wording: Wording
) -> None:
    """The reason is `tls`. The call is not retried, except by a caller that waits for a scheduler to come."""
    error = e.error_of(Code.UNAVAILABLE, text, (), HERE, tls=tls)
    assert (type(error), error.reason, setting in str(error)) == (e.NotReachable, e.TLS, True)
    wording(error)
    assert Patience(60.0, lambda: 0.0).wait_s(error, safe=True) is None
    assert Patience(60.0, lambda: 0.0, lasting=True).wait_s(error, safe=True) is not None


@pytest.mark.parametrize("value", [b"\xff\xff\xff", "text", b""])
def test_details_that_cannot_be_read_are_none(value: object) -> None:
    """Details from a proxy, or damaged ones, are ignored; the status still counts."""
    error = e.error_of(Code.NOT_FOUND, "gone", [(e.DETAILS, value), ("other", b"x")], HERE)
    assert (e.NotFound, "gone", "unknown") == (type(error), str(error), error.reason)


def test_the_drawn_tree_of_errors_is_complete() -> None:
    """The module's docstring draws every class of error and no other."""
    assert e.__doc__ is not None
    drawn = {line.split()[1] for line in e.__doc__.splitlines() if "──" in line}
    defined = {
        name
        for name, kind in vars(e).items()
        if isinstance(kind, type) and issubclass(kind, e.GavelError) and kind is not e.GavelError
    }
    assert defined == {word.strip("├─└│ ") for word in drawn if word.strip("├─└│ ")} | {"InvalidJob"}
    assert issubclass(e.InvalidJob, e.Invalid)


def test_a_refusal_of_a_job_is_placed_in_its_file() -> None:
    """The field's path in the protocol becomes the name in the file, with file and line."""
    source = Source("jobs.yaml", 3, {"memory": 7, "env": 9})
    specs = [JobSpec(command=("a",)), JobSpec(command=("b",), source=source)]

    def message(field: str) -> str:
        return str(with_place(specs, e.Invalid(f"{field}: is wrong", reason="invalid", field=field)))

    assert message("specs[1].memory_gb") == "jobs.yaml: line 7: memory: is wrong"
    assert message("specs[1].launch.env.A") == "jobs.yaml: line 9: env.A: is wrong"
    assert message("specs[1].gpus") == "jobs.yaml: line 3: gpus: is wrong"
    assert message("specs[0].gpus") == "job 1: gpus: is wrong"
    assert message("specs[7].gpus") == "specs[7].gpus: is wrong"
    assert message("idempotency_key") == "idempotency_key: is wrong"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("launch.command[2]", "command[2]"),
        ("excluded_worker_types[0]", "exclude_worker_types[0]"),
        ("launch.upload", "package"),
        ("after[1].when", "after[1].when"),
        ("earliest_start_s", "start"),
        ("", ""),
    ],
)
def test_fields_by_the_names_of_the_file(path: str, field: str) -> None:
    """The first part of a path is replaced by its name in the file; the rest stays unchanged."""
    assert field == file_field(path)
