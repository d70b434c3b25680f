"""The rules of retries, without a network: when a call is repeated, and which parts of an answer are new."""

from datetime import UTC, datetime

import pytest

from gavel.client import errors as e
from gavel.client.jobs.spec import JobSpec
from gavel.client.results import Job, JobEvent, JobState, LogChunk
from gavel.client.transport.following import Reading, Waiting
from gavel.client.transport.retry import Patience
from tests.support.wording import Wording


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


UNREACHABLE = e.NotReachable("x", reason="unreachable")
STOPPING = e.NotReachable("x", reason="stopping", retry_s=2.0)


@pytest.mark.parametrize(
    ("error", "safe", "again"),
    [
        (UNREACHABLE, True, True),
        (UNREACHABLE, False, False),
        (STOPPING, False, True),
        (e.TooMany("x", reason="too_many", retry_s=1.0), False, True),
        (e.TooMany("x", reason="too_many"), True, False),
        (e.Conflict("x", reason="slow_reader"), True, True),
        (e.Conflict("x", reason="key_reused"), True, False),
        (e.Refused("x", reason="unavailable", retry_s=5.0), True, False),
        (e.NotFound("x"), True, False),
        (e.ServerError("x"), True, False),
        (e.NotAllowed("x"), True, False),
        (e.Invalid("x"), True, False),
    ],
)
def test_errors_that_are_retried(error: e.GavelError, safe: bool, again: bool) -> None:
    """A call is repeated only if it was refused before it had an effect, or if a repetition does no harm."""
    assert again == (Patience(60.0, Clock()).wait_s(error, safe) is not None)


def test_followers_wait_for_the_logs_of_a_node_that_is_away() -> None:
    """A single read reports the error; following waits until the node is back."""
    error = e.Refused("x", reason="unavailable", retry_s=5.0)
    assert Patience(60.0, Clock(), lasting=True).wait_s(error, True) == 5.0
    assert Patience(60.0, Clock(), lasting=True).wait_s(e.Refused("x", reason="refused"), True) is None


def test_the_wait_doubles_up_to_a_limit_and_is_reset() -> None:
    """The wait is drawn between half and all of its length, but is never shorter than the scheduler asked for."""
    low, high = Patience(1e6, Clock(), lambda: 0.0), Patience(1e6, Clock(), lambda: 1.0)
    waits = [high.wait_s(UNREACHABLE, True) for _ in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [low.wait_s(UNREACHABLE, True) for _ in range(2)] == [0.05, 0.1]
    assert high.wait_s(STOPPING, True) == 5.0
    high.begin()
    assert high.wait_s(UNREACHABLE, True) == 0.1
    assert high.wait_s(STOPPING, True) == 2.0


def test_patience_ends() -> None:
    """No wait goes beyond the end of patience; a success renews it."""
    clock = Clock()
    patience = Patience(10.0, clock, lambda: 1.0)
    clock.now_s = 9.95
    assert patience.wait_s(UNREACHABLE, True) is None
    patience.begin()
    assert patience.wait_s(UNREACHABLE, True) == 0.1
    assert Patience(0.0, clock).wait_s(UNREACHABLE, True) is None


# --------------------------------------------------------------------------------------------------- waiting


def job(name: str, state: JobState, index: int | None = None) -> Job:
    """Return a job in this state."""
    return Job(
        id=name,
        spec=JobSpec(),
        state=state,
        why="",
        submitted=datetime(2030, 1, 1, tzinfo=UTC),
        started=None,
        ended=None,
        **dict.fromkeys(("steps_done", "steps_saved", "run_s", "cost"), 0.0),
        **dict.fromkeys(("attempt", "failures", "node_failures", "preemptions"), 0),
        blocked_by=(),
        placement=None,
        exit_code=None,
        last_lines="",
        time_s={},
        array_index=index,
        gpu_s={},
        nodes=(),
    )


def event(job: Job | None, *, all_present: bool = False) -> JobEvent:
    """Return an event of a watch about this job."""
    return JobEvent(job, None, False, all_present)


def test_waiting_ends_when_all_have_ended() -> None:
    """Waiting ends only after all present jobs were reported; the results are in the requested order."""
    waiting = Waiting(["2", "1", "2"])
    for present in (
        job("1", JobState.COMPLETED),
        job("2_1", JobState.FAILED, 1),
        job("2_0", JobState.RUNNING, 0),
    ):
        waiting.take(event(present))
        assert not waiting.is_over
    waiting.take(event(None, all_present=True))
    assert not waiting.is_over
    waiting.take(event(job("2_0", JobState.CANCELLED, 0)))
    assert waiting.is_over
    assert [ended.id for ended in waiting.jobs] == ["2_0", "2_1", "1"]
    assert list(waiting.call().request.filter.jobs) == ["2", "1"]


def test_waiting_for_a_job_that_is_not_there_ends_at_once(wording: Wording) -> None:
    """A job that does not exist is an error, because otherwise the call would never return."""
    waiting = Waiting(["1", "9"])
    waiting.take(event(job("1", JobState.RUNNING)))
    with pytest.raises(e.NotFound, match="'9'") as raised:
        waiting.take(event(None, all_present=True))
    wording(raised.value)
    assert Waiting([]).is_empty


# ------------------------------------------------------------------------------------------------------ logs


def chunk(offset: int, data: bytes, *, attempt: int = 1, rank: int = 0, notice: str = "") -> LogChunk:
    """Return a piece of a log."""
    return LogChunk("1", attempt, rank, "n1", offset, data, notice)


def test_every_byte_is_read_once() -> None:
    """Pieces that are sent again after a lost connection are dropped, or cut to their new bytes."""
    reading = Reading("1", 0, None, None, True)

    def fresh(*piece: object, **more: object) -> tuple[int, bytes] | None:
        new = reading.new_part(chunk(*piece, **more))  # type: ignore[arg-type]
        return None if new is None else (new.offset, new.data)

    assert fresh(0, b"abc") == (0, b"abc")
    assert fresh(0, b"xy", rank=1) == (0, b"xy")
    assert None is fresh(0, b"abc")
    assert fresh(0, b"abcde") == (3, b"de")
    assert None is fresh(2, b"cd")
    # A gap: the log was rotated in between.
    assert fresh(7, b"h") == (7, b"h")
    assert fresh(0, b"new", attempt=2) == (0, b"new")
    # An earlier attempt is sent again from its beginning.
    assert None is fresh(0, b"old", rank=5)


def test_the_last_lines_are_requested_once() -> None:
    """`--tail 5 -f` prints five lines once, not again after each lost connection."""
    reading = Reading("1", 0, None, 5, True)
    assert reading.call().request.tail_lines == 5
    reading.new_part(chunk(100, b"last\n"))
    assert not reading.call().request.HasField("tail_lines")
    assert reading.new_part(chunk(0, b"x" * 100)) is None


def test_notices_are_returned_once() -> None:
    """A notice of each attempt is returned once."""
    reading = Reading("1", 0, None, None, True)
    new = [reading.new_part(chunk(0, b"", attempt=at, notice="starts")) is not None for at in (1, 1, 2)]
    assert new == [True, False, True]
