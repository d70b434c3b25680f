"""What callbacks of trainers share: the steps of a trainer's loop, with a tuner that says when to save."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gavel.training import auto
from gavel.training.auto import AutoSave
from gavel.training.gate import Gate
from gavel.training.hook import Steps
from gavel.training.interval import SKIPPED_STEPS, Tuner
from tests.training.leases import RunDirectory
from tests.training.virtual_lease import virtual_lease


class Clock:
    """A clock that only the test moves."""

    now_s = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all steps in this test."""
    virtual = Clock()
    monkeypatch.setattr(auto, "time", virtual)
    monkeypatch.setattr("gavel.training.hook.time", virtual)
    return virtual


def test_a_trainer_is_told_to_save_at_the_tuned_interval(clock: Clock) -> None:
    """The time from the order to save to the end of the writing is what a checkpoint costs."""
    steps = Steps(Tuner(0.05))
    steps.begin(0, None, None, None)
    saves = []
    for step in range(1, 100):
        clock.now_s += 0.5
        if steps.done(step).save:
            saves.append(step)
            # The trainer writes before it calls us, and we mark the checkpoint as complete.
            clock.now_s += 0.15
            with steps.saving(step):
                clock.now_s += 0.05
    assert saves[0] == SKIPPED_STEPS + 20
    assert {later - earlier for earlier, later in itertools.pairwise(saves)} == {8}


def test_a_trainer_that_cannot_save_tries_later(clock: Clock) -> None:
    """After a failure the interval is twice as long until a checkpoint succeeds."""
    steps = Steps(Tuner(0.05))
    steps.begin(0, None, None, None)
    saves = []
    for step in range(1, 120):
        clock.now_s += 0.5
        if steps.done(step).save:
            saves.append(step)
            with pytest.raises(OSError, match="full") if len(saves) == 2 else steps.saving(step):
                if len(saves) == 2:
                    with steps.saving(step):
                        raise OSError("the disk is full")
                clock.now_s += 0.2
    gaps = [later - earlier for earlier, later in itertools.pairwise(saves)]
    assert gaps[:3] == [8, 16, 8]


def test_an_evaluation_before_a_checkpoint_costs_the_interval_nothing(clock: Clock) -> None:
    """The time from the last `save_begins` counts; an announced checkpoint that is not written leaves no trace."""
    steps = Steps(Tuner(0.05))
    steps.begin(0, None, None, None)
    saves = []
    for step in range(1, 100):
        steps.save_dropped()
        clock.now_s += 0.5
        if steps.done(step).save:
            saves.append(step)
            steps.save_begins()
            clock.now_s += 30
            steps.save_begins()
            clock.now_s += 0.15
            with steps.saving(step):
                clock.now_s += 0.05
        else:
            steps.save_begins()
    assert saves[0] == SKIPPED_STEPS + 20
    assert {later - earlier for earlier, later in itertools.pairwise(saves)} == {8}


def test_a_dropped_checkpoint_counts_as_stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that the trainer announces and does not write is not measured, and steps keep the time."""
    with virtual_lease(RunDirectory(tmp_path), monkeypatch) as lease:
        steps = Steps()
        # Before and after the loop a trainer may evaluate, which announces nothing.
        steps.save_begins()
        assert not lease.session.progress.saving
        steps.begin(0, None, None, None)
        for step in range(1, 4):
            lease.step()
            steps.done(step)
            steps.save_begins()
            assert lease.measured(step).get("final_save_s") == 0
            lease.clock.take(1.5)
            steps.save_dropped()
        steps.save_begins()
        steps.end(3)
        steps.save_begins()
        assert not lease.session.progress.saving
        # The first report was 0.5 s after the start, the last one 6 s and two steps later.
        assert lease.measured(3) == {"step_s": pytest.approx((6.0 - 0.5) / 2)}


class Asked:
    """A session that counts the requests for a checkpoint."""

    def __init__(self) -> None:
        self.asked, self.lease = 0, None

    def ask_to_save(self) -> None:
        """Count a request."""
        self.asked += 1


@pytest.mark.parametrize(("rank", "asks"), [(0, 2), (1, 0)])
def test_only_rank_0_asks_for_checkpoints(
    rank: int, asks: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks once, and again only if the ranks did not agree; no rank saves by itself."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    session, gate = Asked(), Gate()
    own = AutoSave(Tuner(), gate, session)  # type: ignore[arg-type]
    own.begin(0)
    limit = gate.limit
    for step in range(1, SKIPPED_STEPS + 20 + 40):
        clock.now_s += 0.3
        own.step_done(step)
    assert session.asked == asks
    assert gate.limit == limit


def test_ranks_outside_gavel_cannot_agree(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is said when the loop begins, with what to use instead."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    AutoSave(Tuner(), Gate(), None).begin(0)
    assert "use every_steps instead" in caplog.text
