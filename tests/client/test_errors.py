"""From a gRPC status to one of ours: the kind, the reason, the field, and words that help."""

import grpc
import pytest

from gavel.client import errors as e
from gavel.client.jobs.errors import file_field, placed
from gavel.client.jobs.spec import JobSpec, Source
from gavel.client.transport.retry import Patience
from scheduler.live.access import status as live_status
from scheduler.live.access.status import CallFailed, status_of

Code = grpc.StatusCode
HERE = "127.0.0.1:7070"


def as_told(failed: CallFailed) -> e.GavelError:
    """What a client makes of what the scheduler says."""
    said = status_of(failed)
    return e.error_of(said.code, said.details, said.trailing_metadata, HERE)


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
    """With reason, field and the time to wait as they were sent."""
    error = as_told(CallFailed(reason, "what is wrong", "policy", 2.5))
    assert (kind, reason, "policy", 2.5) == (type(error), error.reason, error.field, error.retry_s)
    assert str(error) == "what is wrong"


@pytest.mark.parametrize(
    ("code", "text", "kind", "words"),
    [
        (Code.UNAVAILABLE, "connect: Connection refused (111)", e.NotReachable, "the connection was refused"),
        (Code.UNAVAILABLE, "DNS resolution failed", e.NotReachable, "the host name is unknown"),
        (Code.UNAVAILABLE, "Ssl handshake failed", e.NotReachable, "no secure connection to 127.0.0.1:7070"),
        (Code.UNAVAILABLE, "Socket closed", e.NotReachable, "no scheduler answers at 127.0.0.1:7070"),
        (Code.DEADLINE_EXCEEDED, "x", e.NotReachable, "did not answer in time"),
        (Code.UNIMPLEMENTED, "Method not found!", e.ServerError, "it has another version"),
        (Code.RESOURCE_EXHAUSTED, "Sent message larger than max", e.Invalid, "too large for one call"),
        (Code.UNKNOWN, "boom", e.ServerError, "boom"),
        (Code.CANCELLED, "", e.ServerError, "CANCELLED"),
    ],
)
def test_what_gprc_itself_says(code: Code, text: str, kind: type[e.GavelError], words: str) -> None:
    """Nobody of ours said it: the words are about the network, and name the address."""
    error = e.error_of(code, text, (), HERE)
    assert type(error) is kind
    assert words in str(error)


CONNECTING = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7070: Socket closed"


@pytest.mark.parametrize(
    ("text", "tls", "words"),
    [
        (CONNECTING, False, "GAVEL_CA"),
        (CONNECTING, True, "port for agents"),
        ("Tls handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", True, "does not speak TLS"),
        ("Tls handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: self signed", True, "tls/ca.pem"),
        ("Hostname Verification Check failed: peer name x is not in peer certificate", True, "--host"),
    ],
)
def test_who_connects_the_wrong_way_is_told_what_to_set(text: str, tls: bool, words: str) -> None:
    """Its reason is `tls`, and asking again is no use but for whoever waits for what will come."""
    error = e.error_of(Code.UNAVAILABLE, text, (), HERE, tls=tls)
    assert (type(error), error.reason, words in str(error)) == (e.NotReachable, e.TLS, True)
    assert Patience(60.0, lambda: 0.0).wait_s(error, safe=True) is None
    assert Patience(60.0, lambda: 0.0, lasting=True).wait_s(error, safe=True) is not None


@pytest.mark.parametrize("value", [b"\xff\xff\xff", "text", b""])
def test_details_that_cannot_be_read_are_none(value: object) -> None:
    """A proxy's, or damaged: the status still holds."""
    error = e.error_of(Code.NOT_FOUND, "gone", [(e.DETAILS, value), ("other", b"x")], HERE)
    assert (e.NotFound, "gone", "unknown") == (type(error), str(error), error.reason)


def test_the_tree_at_the_top_is_the_tree() -> None:
    """Each class of the drawing is there, below the one that it hangs from, and no other."""
    assert e.__doc__ is not None
    drawn = {line.split()[1] for line in e.__doc__.splitlines() if "──" in line}
    there = {
        name
        for name, kind in vars(e).items()
        if isinstance(kind, type) and issubclass(kind, e.GavelError) and kind is not e.GavelError
    }
    assert there == {word.strip("├─└│ ") for word in drawn if word.strip("├─└│ ")} | {"InvalidJob"}
    assert issubclass(e.InvalidJob, e.Invalid)


def test_an_objection_to_a_job_is_shown_where_it_was_written() -> None:
    """The path of the protocol becomes the field of the file, with file and line."""
    source = Source("jobs.yaml", 3, {"memory": 7, "env": 9})
    specs = [JobSpec(command=("a",)), JobSpec(command=("b",), source=source)]

    def told(field: str, text: str) -> str:
        return str(placed(specs, e.Invalid(f"{field}: {text}", reason="invalid", field=field)))

    assert told("specs[1].memory_gb", "is too much") == "jobs.yaml: line 7: memory: is too much"
    assert told("specs[1].launch.env.A", "is long") == "jobs.yaml: line 9: env.A: is long"
    assert told("specs[1].gpus", "no type has so many") == "jobs.yaml: line 3: gpus: no type has so many"
    assert told("specs[0].gpus", "too many") == "job 1: gpus: too many"
    assert told("specs[7].gpus", "too many") == "specs[7].gpus: too many"
    assert told("idempotency_key", "is long") == "idempotency_key: is long"


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
    """What follows the first part of a path stays as it is."""
    assert field == file_field(path)
