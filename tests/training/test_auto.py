"""`LeasedIterator(every="auto")`: when it saves, what it logs, and which clock counts."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.training import LeasedIterator
from gavel.training.auto import AutoSave
from gavel.training.gate import Gate
from gavel.training.interval import SKIPPED_STEPS, Tuner
from gavel.training.progress import Progress
from tests.training.leases import RunDirectory, under_a_lease
from tests.training.test_iterator import Notes
from tests.training.test_saving import Copying, persisted


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """The run directory of this process, with a lease."""
    directory = RunDirectory(tmp_path / "run")
    with under_a_lease(directory.environ()):
        yield directory


def test_auto_saves_after_the_profile_and_keeps_the_interval(run: RunDirectory) -> None:
    """The loop saves without any number of the user, and reports what that costs."""
    copying = Copying()
    steps = LeasedIterator(range(400), checkpoint=copying, steps=400, every="auto", overhead=0.5)
    for _ in steps:
        pass
    assert copying.snapshots[0] == SKIPPED_STEPS + 100
    assert copying.saved[-1] == 400
    measured = run.progress()["measured"]
    assert {"step_s", "stall_s", "durable_s", "interval", "overhead"} <= measured.keys()


def test_auto_works_with_a_checkpoint_that_stops_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Then the whole save is the pause, and a job's log, which has warnings only, says once that the loop waits."""
    notes = Notes()
    with caplog.at_level(logging.WARNING, "gavel.training"):
        steps = LeasedIterator(range(300), checkpoint=notes, steps=300, every="auto", overhead=0.5)
        for _ in steps:
            pass
    assert len([message for message in caplog.messages if "background=True" in message]) == 1
    assert notes.saved[0] == SKIPPED_STEPS + 100
    assert notes.saved[-1] == 300


def test_of_several_ranks_one_logs_that_the_loop_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 does; the others wait for the same reason."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        LeasedIterator("abc", checkpoint=Notes(), every="auto")
    assert len([message for message in caplog.messages if "background=True" in message]) == 1


class Clocks:
    """Both clocks of the module `time`, which only the test moves: one is monotonic, the wall clock may be set."""

    def __init__(self) -> None:
        self.now_s, self.set_by_s = 100.0, 0.0

    def monotonic(self) -> float:
        """Return the time since some moment."""
        return self.now_s

    perf_counter = monotonic

    def time(self) -> float:
        """Return the time of the day."""
        return self.now_s + self.set_by_s


@pytest.mark.parametrize("background", [True, False])
def test_a_wall_clock_that_jumps_changes_no_interval(
    monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """The wall clock jumps by a day in every step and checkpoint, back and forth; the steps saved are the same."""
    saves = []
    for jump_s in (0.0, 86_400.0):
        clocks = Clocks()
        for module in ("auto", "saving", "iterator", "persist"):
            monkeypatch.setattr(f"gavel.training.{module}.time", clocks)

        def take(duration_s: float, clocks: Clocks = clocks, jump_s: float = jump_s) -> None:
            clocks.now_s += duration_s
            clocks.set_by_s = jump_s - clocks.set_by_s

        class Lasting(Copying):
            def save(self, step: int, take: Callable[[float], None] = take) -> None:
                take(0.2)
                super().save(step)

            def snapshot(self, step: int, take: Callable[[float], None] = take) -> Callable[[], None]:
                take(0.2)
                return super().snapshot(step)

        lasting = Lasting()
        lasting.background = background
        steps = LeasedIterator(range(100), checkpoint=lasting, steps=100, every="auto", overhead=0.05)
        for _ in steps:
            persisted(steps)
            take(0.5)
        saves.append(lasting.saved)
    assert saves[0] == [*range(SKIPPED_STEPS + 20, 100, 8), 100]
    assert saves[1] == saves[0]


class Asked:
    """A session of rank 0, which keeps how many steps were done when it was asked to save."""

    lease = None

    def __init__(self, gate: Gate) -> None:
        self.gate, self.at = gate, []
        self.progress = Progress(Path("/nowhere"), 0, 3, 2)

    def ask_to_save(self) -> None:
        """Record the request."""
        self.at.append(self.gate.done)


def test_rank_0_asks_for_no_checkpoint_while_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """So with every="auto" no rank has to wait for the checkpoint before."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    clocks, gate = Clocks(), Gate()
    monkeypatch.setattr("gavel.training.auto.time", clocks)
    session = Asked(gate)
    auto = AutoSave(Tuner(0.5), gate, session)  # type: ignore[arg-type]
    auto.begin(0)
    for step in range(1, 202):
        clocks.now_s += 0.5
        gate.done = step
        auto.step_done(step)
        if step == 26:
            auto.save_begins(clocks.now_s)
            auto.save_ends(step)
        if step == 200:
            auto.durable(clocks.now_s)
    assert session.at == [25, 201]


@pytest.mark.parametrize(
    ("code", "why"), [(errno.ENOSPC, "disk full"), (errno.EROFS, "read-only file system")]
)
def test_auto_logs_a_disk_that_refuses_once(caplog: pytest.LogCaptureFixture, code: int, why: str) -> None:
    """The interval doubles until a checkpoint succeeds, and only the first failure is logged."""
    copying = Copying()
    copying.write_fault = OSError(code, why)
    steps = LeasedIterator(range(2000), checkpoint=copying, steps=2000, every="auto")
    with caplog.at_level(logging.WARNING, "gavel.training"):
        for _ in steps:
            persisted(steps)
            if steps.step == 1999:
                copying.write_fault = None
    assert len(copying.snapshots) > 2
    assert len([message for message in caplog.messages if why in message]) == 1


def test_the_tuned_interval_is_in_the_checkpoint() -> None:
    """A checkpoint that keeps parts keeps the tuner, too."""

    class Keeping(Notes):
        def __init__(self) -> None:
            super().__init__()
            self.parts: dict[str, Any] = {}

        def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
            self.parts[f"{name}{' of rank' if of_rank else ''}"] = part

    keeping = Keeping()
    LeasedIterator("abc", checkpoint=keeping, every="auto")
    assert isinstance(keeping.parts["interval"], Tuner)
