"""`Interval`, for loops of one's own: when it saves, what it takes from the lease, and what it reports."""

from __future__ import annotations

import inspect
import itertools
import json
import signal
import time
from pathlib import Path

import pytest

from gavel.training import Interval, pacing, progress, report, session
from gavel.training.interval import PROFILE_STEPS, SKIPPED_STEPS
from tests.training.leases import RunDirectory, under_a_lease


class Clock:
    """A clock that only this test moves."""

    now_s = 50.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    monotonic = __call__


def train(interval: Interval, clock: Clock, steps: range, *, save_s: float = 0.2) -> list[int]:
    """Train in virtual time, and return the steps at which checkpoints were saved."""
    saves = []
    for step in steps:
        clock.now_s += 0.5
        if interval.due(step):
            with interval.saving():
                clock.now_s += save_s
            saves.append(step)
    return saves


def test_a_loop_of_ones_own_keeps_the_bound() -> None:
    """`Interval` says when to save; the whole time of a save counts, because the loop waits for it."""
    clock = Clock()
    interval = Interval(0.05, clock=clock)
    saves = train(interval, clock, range(100))
    assert saves[0] == SKIPPED_STEPS + PROFILE_STEPS
    assert interval.steps == 8
    assert {later - earlier for earlier, later in itertools.pairwise(saves)} == {8}


def test_a_loop_of_ones_own_begins_tuned() -> None:
    """The state of an Interval goes into a checkpoint like any other."""
    clock = Clock()
    interval = Interval(0.05, clock=clock)
    train(interval, clock, range(100))
    again = Interval(0.05, clock=clock)
    again.load_state_dict(interval.state_dict())
    assert train(again, clock, range(100, 120)) == [108, 116]


def test_a_save_that_raises_is_tried_later() -> None:
    """The exception passes through, and the interval is twice as long until a checkpoint succeeds."""
    clock = Clock()
    interval = Interval(0.05, clock=clock)
    saves = train(interval, clock, range(60))
    for step in range(60, 90):
        clock.now_s += 0.5
        if interval.due(step):
            break
    with pytest.raises(OSError, match="full"), interval.saving():
        raise OSError("the disk is full")
    assert interval.steps == 8
    assert train(interval, clock, range(step + 1, step + 30)) == [step + 16, step + 24]
    assert saves


def test_a_checkpoint_of_the_initial_state_sets_no_interval() -> None:
    """Before the first step it is unknown how many steps a checkpoint costs; the profile goes on as without it."""
    clock = Clock()
    interval = Interval(0.05, clock=clock)
    interval.due(0)
    with interval.saving():
        clock.now_s += 0.2
    assert interval.steps is None
    assert train(interval, clock, range(1, 50)) == [25, 33, 41, 49]


def test_the_clock_is_monotonic() -> None:
    """A wall clock that is set while the loop runs changes no interval."""
    assert inspect.signature(Interval).parameters["clock"].default is time.monotonic


def test_a_checkpoint_takes_no_time_from_the_next_emulated_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timetable of `pace` starts again after it, as after a checkpoint of a LeasedIterator."""
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    monkeypatch.setattr(pacing, "_due_s", clock.now_s + 0.5)
    with Interval(0.05, clock=clock).saving():
        clock.now_s += 0.2
    assert pacing._due_s == clock.now_s


# -------------------------------------------------------------------------------------------- under a lease


def test_the_mean_time_between_failures_comes_with_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """√(2 · 0.2 s · 10⁵ s) are 200 s. `Interval` alone does not take SIGTERM from a script that handles it itself."""
    directory = RunDirectory(tmp_path / "run")
    path = directory.path / "lease.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mtbf_s": 1e5}))
    for name, value in directory.environ().items():
        monkeypatch.setenv(name, value)
    clock, handler = Clock(), signal.getsignal(signal.SIGTERM)
    interval = Interval(0.05, clock=clock)
    train(interval, clock, range(500))
    assert interval.steps == 400
    assert session._session is None
    assert not (directory.path / "heeds-0").exists()
    assert signal.getsignal(signal.SIGTERM) == handler


def test_what_checkpoints_cost_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a LeasedIterator reports it; and the time of a checkpoint does not count as stepping."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with under_a_lease(RunDirectory(tmp_path / "run").environ()) as own_session:
        interval = Interval(0.05, clock=clock)
        saves = []
        for step in range(1, 101):
            clock.now_s += 0.5
            report(step)
            if interval.due(step):
                with interval.saving():
                    clock.now_s += 0.2
                saves.append(step)
        measured = own_session.progress.measured(clock.now_s, 100)
        stepping_s = own_session.progress.stepping_s(clock.now_s)
    assert len(saves) == 10
    assert stepping_s == pytest.approx(99 * 0.5)
    assert measured == {
        "step_s": 0.5,
        "stall_s": 0.2,
        "durable_s": 0.2,
        "final_save_s": 0.2,
        "interval": 8.0,
        "overhead": 0.05,
        "loss_s": 4.2,
    }


def test_a_save_that_raises_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time does not count as stepping, either."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with under_a_lease(RunDirectory(tmp_path / "run").environ()) as own_session:
        interval = Interval(0.05, clock=clock)
        report(1)
        interval.due(1)
        clock.now_s += 0.5

        def fail() -> None:
            clock.now_s += 3.0
            raise OSError("the disk is full")

        with pytest.raises(OSError, match="full"), interval.saving():
            fail()
        assert own_session.progress.stepping_s(clock.now_s) == pytest.approx(0.5)
        assert own_session.progress.measured(clock.now_s, 1) == {}
