"""`pace`: how long one step takes, how long many take, and steps after a pause. Time is virtual."""

from __future__ import annotations

import pytest

from gavel.training import pace, pacing
from gavel.training.errors import EnvironmentFault
from tests.support.wording import Wording


class Clock:
    """A clock whose sleeps take a little too long."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 1000.0, []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        """Sleep, and wake a little late."""
        self.slept_s.append(duration_s)
        self.now_s += duration_s + 0.003


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Virtual time, before the first step."""
    virtual = Clock()
    monkeypatch.setattr(pacing, "time", virtual)
    monkeypatch.setattr(pacing, "_speed", None)
    monkeypatch.setattr(pacing, "_due_s", None)
    return virtual


@pytest.mark.parametrize(("speed", "step_s"), [("1", 0.1), ("0.5", 0.2), ("4", 0.025)])
def test_steps_take_their_time_at_the_speed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, speed: str, step_s: float
) -> None:
    """A hundred steps take a hundred times as long as one: late wake-ups do not add up."""
    monkeypatch.setenv("GAVEL_SPEED", speed)
    for _ in range(100):
        clock.now_s += 0.001
        pace(0.1)
    assert clock.now_s - 1000.0 == pytest.approx(100 * step_s, abs=0.005)


def test_time_lost_in_a_pause_is_not_made_up(clock: Clock) -> None:
    """Steps after a pause take their full time."""
    pace(0.1)
    clock.now_s += 60.0
    before_s = clock.now_s
    for _ in range(10):
        pace(0.1)
    assert clock.now_s - before_s == pytest.approx(1.0, abs=0.005)


def test_a_checkpoint_takes_no_time_from_the_next_step(clock: Clock) -> None:
    """After a checkpoint, however short, the next step takes its full time."""
    pace(0.1)
    clock.now_s += 0.05
    pacing.start_over()
    before_s = clock.now_s
    pace(0.1)
    assert clock.now_s - before_s == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize("step_s", [-1.0, float("nan"), float("inf")])
def test_an_impossible_step_is_refused(clock: Clock, step_s: float, wording: Wording) -> None:
    """Negative and endless steps are refused."""
    with pytest.raises(ValueError, match=str(step_s)) as refused:
        pace(step_s)
    wording(refused.value)


def test_a_wrong_speed_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("GAVEL_SPEED", "fast")
    with pytest.raises(EnvironmentFault, match="GAVEL_SPEED is 'fast'"):
        pace(0.1)
