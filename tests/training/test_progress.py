"""What a job measures about itself, as the file of its progress has it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import progress as progress_module
from gavel.training.iterator import LeasedIterator
from gavel.training.progress import Progress
from tests.training.leases import RunDirectory, under_a_lease


class Clock:
    """A monotonic clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all progress in this test."""
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def written(tmp_path: Path) -> dict[str, Any]:
    """Return what the file has under `measured`."""
    content: dict[str, Any] = json.loads((tmp_path / "progress-0.json").read_text())
    measured: dict[str, Any] = content.get("measured", {})
    return measured


def save(progress: Progress, clock: Clock, step: int, takes_s: float) -> None:
    """Save a checkpoint in the foreground."""
    progress.save_begins(step)
    clock.now_s += takes_s
    progress.save_ends(step, succeeded_at=step)


def test_steps_and_foreground_saves_are_measured(tmp_path: Path, clock: Clock) -> None:
    """The first step, which is slow, does not count for the time of a step; a save in the foreground stalls wholly."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.waits_for([])
    progress.step_begins()
    clock.now_s += 30
    progress.write(clock.now_s, 1)
    assert written(tmp_path) == {"wait": 0.0}
    clock.now_s += 20
    save(progress, clock, 41, takes_s=2)
    clock.now_s += 20.5
    save(progress, clock, 82, takes_s=4)
    assert progress.waits is not None
    progress.waits.waited_s = 7.05
    progress.write(clock.now_s, 82)
    assert written(tmp_path) == {
        "step_s": 0.5,
        "wait": 0.1,
        "gpu_rate": pytest.approx(1 / 0.45, rel=1e-5),
        "stall_s": 3.0,
        "durable_s": 3.0,
        "final_save_s": 3.0,
        "interval": 41.0,
        "overhead": pytest.approx(3 / 23.5, rel=1e-5),
        "loss_s": 23.5,
    }


def test_a_save_counts_while_it_lasts(tmp_path: Path, clock: Clock) -> None:
    """A save that is killed for its length has left its length so far, so that the next attempt gets more time."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.step_begins()
    progress.save_begins(5)
    progress.write(clock.now_s + 24.5, 5)
    assert written(tmp_path)["final_save_s"] == 24.5
    # Also where a tuner has measured what saves usually take.
    progress.measure(final_save_s=0.2)
    progress.write(clock.now_s + 100.0, 5)
    assert written(tmp_path)["final_save_s"] == 100.0


def test_two_counts_of_the_same_time_measure_no_step(tmp_path: Path, clock: Clock) -> None:
    """Another thread may read the count just before a step ends and the time just after it."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.waits_for([])
    progress.step_begins()
    save(progress, clock, 5, takes_s=0)
    clock.now_s += 1
    progress.write(clock.now_s, 15)
    progress.write(clock.now_s, 16)
    assert written(tmp_path).keys().isdisjoint({"step_s", "gpu_rate", "overhead", "loss_s"})
    clock.now_s += 2
    progress.write(clock.now_s, 16)
    assert written(tmp_path)["step_s"] == 2.0


def test_a_failed_save_measures_nothing(tmp_path: Path, clock: Clock) -> None:
    """A full disk fails at once, which says nothing about how long a save takes."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.step_begins()
    progress.save_begins(5)
    progress.save_ends(None)
    progress.write(clock.now_s + 1, 5)
    assert written(tmp_path) == {}


def test_measured_values_may_be_set_and_withdrawn(tmp_path: Path, clock: Clock) -> None:
    """`measure` replaces the times measured here; values that are not finite or below 0 never reach the file."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    save(progress, clock, 5, takes_s=2)
    progress.measure(
        final_save_s=9.0, load_s=1.5, bytes=1e9, stall_s=float("nan"), durable_s=-1, start_s=1e400
    )
    progress.measure(load_s=None)
    progress.write(clock.now_s, 5)
    measured = written(tmp_path)
    assert measured["final_save_s"] == 9.0
    assert measured["bytes"] == 1e9
    assert measured["stall_s"] == measured["durable_s"] == 2.0
    assert measured.keys().isdisjoint({"load_s", "start_s"})


def test_a_loop_that_copies_its_state_never_waits_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another thread writes the file to a slow disk, the loop can pause for a copy and report what it cost."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    written_to_disk, loop_went_on = [], threading.Event()

    def loop() -> None:
        progress.save_begins(5, briefly=True)
        progress.save_ends(None, succeeded_at=5)
        progress.measure(bytes=100)
        loop_went_on.set()

    def slowly(source: str, target: str) -> None:
        threading.Thread(target=loop, daemon=True).start()
        written_to_disk.append(loop_went_on.wait(10))

    monkeypatch.setattr("os.replace", slowly)
    progress.write(1.0, 5)
    assert written_to_disk == [True]


def test_no_save_counts_as_stepping_at_the_moment_of_its_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is written just then has the steps' time of before the save or of after it."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.step_begins()
    clock.now_s += 5
    progress.save_begins(5)
    clock.now_s += 600
    writer = threading.Thread(target=progress.write, args=(clock.now_s, 5))

    def as_it_ends() -> float:
        writer.start()
        writer.join(0.2)
        return clock.now_s

    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=as_it_ends))
    progress.save_ends(5, succeeded_at=5)
    writer.join()
    assert json.loads((tmp_path / "progress-0.json").read_text())["stepping_s"] == 5.0


class Slow:
    """A checkpoint that a loop resumes from."""

    def load(self) -> int:
        """Return step 4."""
        return 4

    def save(self, step: int) -> None:
        """Do nothing."""


def test_the_iterator_measures_loading_saving_and_waiting(tmp_path: Path) -> None:
    """A resumed loop reports how long its checkpoint took to load and to save, and the time spent in its loader."""
    with under_a_lease(RunDirectory(tmp_path).environ()) as session:
        steps = LeasedIterator(range(4), checkpoint=Slow(), steps=12, every_steps=2)
        assert len(list(steps)) == 8
        measured = session.progress.measured(1e9, 12)
        assert session.progress.waits is not None
        assert session.progress.waits.waited_s > 0
    assert measured.keys() >= {"load_s", "final_save_s", "stall_s", "wait"}
    assert measured["interval"] == 2.0
