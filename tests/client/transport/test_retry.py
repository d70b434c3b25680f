"""When to ask again, and what of the answer is new: the rules without a network."""

from datetime import UTC, datetime

import pytest

from gavel.client import errors as e
from gavel.client.jobs.spec import JobSpec
from gavel.client.results import Job, JobEvent, JobState, LogChunk
from gavel.client.transport.following import Reading, Waiting
from gavel.client.transport.retry import Patience


class Clock:
    """A time that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Now."""
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
def test_what_may_pass(error: e.GavelError, safe: bool, again: bool) -> None:
    """What was refused before anything was done, and what does no harm twice; nothing else."""
    assert again == (Patience(60.0, Clock()).wait_s(error, safe) is not None)


def test_logs_of_a_node_that_is_away_are_waited_for_by_those_who_follow() -> None:
    """Whoever asked once is told; whoever follows wants them when they come."""
    error = e.Refused("x", reason="unavailable", retry_s=5.0)
    assert Patience(60.0, Clock(), lasting=True).wait_s(error, True) == 5.0
    assert Patience(60.0, Clock(), lasting=True).wait_s(e.Refused("x", reason="refused"), True) is None


def test_the_wait_doubles_up_to_a_limit_and_begins_anew() -> None:
    """With chance in it: from half of it to all; never below what the scheduler asked for."""
    low, high = Patience(1e6, Clock(), lambda: 0.0), Patience(1e6, Clock(), lambda: 1.0)
    waits = [high.wait_s(UNREACHABLE, True) for _ in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [low.wait_s(UNREACHABLE, True) for _ in range(2)] == [0.05, 0.1]
    assert high.wait_s(STOPPING, True) == 5.0
    high.begin()
    assert high.wait_s(UNREACHABLE, True) == 0.1
    assert high.wait_s(STOPPING, True) == 2.0


def test_patience_ends() -> None:
    """Nothing is waited for that would come after it; what works in between renews it."""
    clock = Clock()
    patience = Patience(10.0, clock, lambda: 1.0)
    clock.now_s = 9.95
    assert patience.wait_s(UNREACHABLE, True) is None
    patience.begin()
    assert patience.wait_s(UNREACHABLE, True) == 0.1
    assert Patience(0.0, clock).wait_s(UNREACHABLE, True) is None


# --------------------------------------------------------------------------------------------------- waiting


def job(name: str, state: JobState, index: int | None = None) -> Job:
    """A job in a state."""
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


def event(one: Job | None, *, all_present: bool = False) -> JobEvent:
    """What a watcher is told."""
    return JobEvent(one, None, False, all_present)


def test_waiting_ends_when_all_have_ended() -> None:
    """Not before everything that is there was said, and in the order asked for."""
    waiting = Waiting(["2", "1", "2"])
    for one in (
        job("1", JobState.COMPLETED),
        job("2_1", JobState.FAILED, 1),
        job("2_0", JobState.RUNNING, 0),
    ):
        waiting.take(event(one))
        assert not waiting.is_over
    waiting.take(event(None, all_present=True))
    assert not waiting.is_over
    waiting.take(event(job("2_0", JobState.CANCELLED, 0)))
    assert waiting.is_over
    assert [one.id for one in waiting.jobs] == ["2_0", "2_1", "1"]
    assert list(waiting.call().request.filter.jobs) == ["2", "1"]


def test_waiting_for_a_job_that_is_not_there_ends_at_once() -> None:
    """Otherwise it would be waited for, for ever."""
    waiting = Waiting(["1", "9"])
    waiting.take(event(job("1", JobState.RUNNING)))
    with pytest.raises(e.NotFound, match="there is no job '9'"):
        waiting.take(event(None, all_present=True))
    assert Waiting([]).is_empty


# ------------------------------------------------------------------------------------------------------ logs


def chunk(offset: int, data: bytes, *, attempt: int = 1, rank: int = 0, notice: str = "") -> LogChunk:
    """A piece of a log."""
    return LogChunk("1", attempt, rank, "n1", offset, data, notice)


def test_every_byte_is_read_once() -> None:
    """Pieces that come again after a lost connection are dropped, or cut to what is new."""
    reading = Reading("1", 0, None, None, True)

    def fresh(*said: object, **more: object) -> tuple[int, bytes] | None:
        found = reading.fresh(chunk(*said, **more))  # type: ignore[arg-type]
        return None if found is None else (found.offset, found.data)

    assert fresh(0, b"abc") == (0, b"abc")
    assert fresh(0, b"xy", rank=1) == (0, b"xy")
    assert None is fresh(0, b"abc")
    assert fresh(0, b"abcde") == (3, b"de")
    assert None is fresh(2, b"cd")
    assert fresh(7, b"h") == (7, b"h")  # a gap: the log was rotated away
    assert fresh(0, b"new", attempt=2) == (0, b"new")
    assert None is fresh(0, b"old", rank=5)  # an earlier attempt, told again from its beginning


def test_after_the_last_lines_were_read_the_rest_is_asked_for() -> None:
    """`--tail 5 -f` shows five lines once, not after each lost connection again."""
    reading = Reading("1", 0, None, 5, True)
    assert reading.call().request.tail_lines == 5
    reading.fresh(chunk(100, b"last\n"))
    assert not reading.call().request.HasField("tail_lines")
    assert reading.fresh(chunk(0, b"x" * 100)) is None


def test_notices_are_said_once() -> None:
    """Each of them, of each attempt."""
    reading = Reading("1", 0, None, None, True)
    said = [reading.fresh(chunk(0, b"", attempt=at, notice="starts")) is not None for at in (1, 1, 2)]
    assert said == [True, False, True]
