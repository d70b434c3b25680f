"""Loops with `every="auto"`: what their checkpoints cost at the interval that they choose, and how it follows.

A step while a checkpoint is in progress is compared with the steps without one before and after it. The pause for the
copy counts in full. Both are measured here, and not by the tuner.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.checkpoint_ways import Cost, Training, quantile
from gavel.training import LeasedIterator, TorchCheckpoint
from gavel.training.checkpoint.atomic import ChecksumFile

# By how many points the overhead may be above the bound.
SLACK = 0.005
# The first checkpoints of a loop allocate memory and end its profile.
SKIPPED = 2
# How many steps without a checkpoint, before and after one, are the base of its cost at least.
BASE_STEPS = 10
# How long one loop may run.
LONGEST_S = 900.0
BUSY = "from benchmarks.checkpoint_ways import Training\ntraining = Training(25)\nwhile True: training.step()"


class Step(NamedTuple):
    """A step and the pause after it; the step of the checkpoint that was in progress during the step."""

    step: Cost
    pause_s: float
    in_flight: int | None


class Saved(NamedTuple):
    """One checkpoint: the steps until the next one, its cost as a part of their time, and its times."""

    interval: int
    overhead: float
    overhead_cpu: float
    pause_s: float
    steps_in_flight: int
    step_s: float
    # The longest step while it was written, in medians of steps.
    longest: float


class Loop:
    """A training loop with `every="auto"`."""

    def __init__(self, training: Training, folder: Path, overhead: float) -> None:
        checkpoint = TorchCheckpoint(
            folder, background=True, model=training.model, optimizer=training.optimizer
        )
        self._training = training
        self._loop = LeasedIterator(range(1 << 40), checkpoint=checkpoint, every="auto", overhead=overhead)
        self._batches = iter(self._loop)
        next(self._batches)
        self.steps: list[Step] = []
        # The indexes in `steps` after which checkpoints began.
        self.begins: list[int] = []

    def run(self, checkpoints: int) -> None:
        """Run until so many more checkpoints have begun."""
        until_s, count = time.monotonic() + LONGEST_S, len(self.begins) + checkpoints
        while len(self.begins) < count and time.monotonic() < until_s:
            persist = self._persist
            began = Cost.now()
            self._training.step()
            step = Cost.since(began)
            began = Cost.now()
            next(self._batches)
            in_flight = persist.step if persist is not None else None
            self.steps.append(Step(step, Cost.since(began).clock_s, in_flight))
            if self._persist is not None and self._persist is not persist:
                self.begins.append(len(self.steps) - 1)

    def close(self) -> None:
        """Wait for the checkpoint in progress."""
        self._loop._saver._wait()

    @property
    def _persist(self) -> Any:
        return self._loop._saver._persist

    def saved(self) -> list[Saved]:
        """Return all checkpoints that another one follows."""
        return [self._saved(begin, end) for begin, end in itertools.pairwise(self.begins)]

    def _saved(self, begin: int, end: int) -> Saved:
        after = self.steps[begin + 1 : end + 1]
        flight = [step for step in after if step.in_flight is not None]
        count = max(BASE_STEPS, len(flight))
        before = [step for step in self.steps[:begin] if step.in_flight is None][-count:]
        idle = before + [step for step in after if step.in_flight is None][:count]
        base = [statistics.fmean(column) for column in zip(*(step.step for step in idle), strict=True)]
        excess = [
            sum(step.step[axis] - base[axis] for step in flight) / (base[axis] * (end - begin))
            for axis in (0, 1)
        ]
        pause_s = self.steps[begin].pause_s
        usual_s = statistics.median(step.step.clock_s for step in idle)
        return Saved(
            interval=end - begin,
            overhead=excess[0] + pause_s / (base[0] * (end - begin)),
            overhead_cpu=excess[1] + pause_s / (base[1] * (end - begin)),
            pause_s=pause_s,
            steps_in_flight=len(flight),
            step_s=base[0],
            longest=max((step.step.clock_s for step in flight), default=usual_s) / usual_s,
        )


@contextlib.contextmanager
def training_loop(megabytes: float, overhead: float) -> Iterator[Loop]:
    """Make a loop in a temporary directory."""
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Training(megabytes), Path(folder), overhead)
        with contextlib.closing(loop):
            yield loop


def bound(megabytes: float, overhead: float, checkpoints: int) -> None:
    """Print what checkpoints cost at the interval that is tuned to this bound."""
    with training_loop(megabytes, overhead) as loop:
        loop.run(SKIPPED + checkpoints + 1)
    saved = loop.saved()[SKIPPED:]
    values = [entry.overhead for entry in saved]
    cpu = statistics.median(entry.overhead_cpu for entry in saved)
    low, middle, high = (quantile(values, part) for part in (0.25, 0.5, 0.75))
    step_s = statistics.median(entry.step_s for entry in saved)
    interval = statistics.median(entry.interval for entry in saved)
    reached = verdict(middle <= overhead + SLACK)
    print(
        f"  bound {overhead:.1%}, {megabytes:g} MB: costs {middle:.2%} ({low:.2%} to {high:.2%}), "
        f"processors {cpu:.2%}; a checkpoint each {interval:.0f} steps of {1e3 * step_s:.0f} ms; {reached}"
    )


def neighbour(megabytes: float, overhead: float, checkpoints: int) -> None:
    """Print what checkpoints cost before and after other jobs start on the same cores."""
    with training_loop(megabytes, overhead) as loop, contextlib.ExitStack() as stack:
        loop.run(SKIPPED + checkpoints)
        alone = len(loop.begins) - 1
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        loop.run(checkpoints + 2)
        print_neighbour(loop, alone, overhead)


def print_neighbour(loop: Loop, alone: int, overhead: float) -> None:
    """Print the checkpoints before and after the number `alone`."""
    saved = loop.saved()
    before = statistics.median(entry.overhead for entry in saved[SKIPPED:alone])
    row = "  ".join(f"{entry.overhead:.1%}/{entry.interval}" for entry in saved[alone:])
    late = statistics.median(entry.overhead for entry in saved[alone + 2 :])
    print(f"  alone {before:.2%}; with two neighbours, cost/interval of each checkpoint: {row}")
    print(f"  from the third on {late:.2%}, bound {overhead:.1%}: {verdict(late <= overhead + SLACK)}")


@contextlib.contextmanager
def throttled(bytes_per_s: Callable[[], float]) -> Iterator[None]:
    """Slow down all writing of checkpoints within the block to this speed."""
    write = ChecksumFile.write

    def slowly(file: ChecksumFile, data: bytes | memoryview) -> int:
        time.sleep(memoryview(data).nbytes / bytes_per_s())
        return write(file, data)

    with mock.patch.object(ChecksumFile, "write", slowly):
        yield


def slow_disk(megabytes: float, overhead: float, checkpoints: int) -> None:
    """Print how the interval follows a disk that becomes slow in the middle."""
    speed = [1e12]
    with throttled(lambda: speed[0]), training_loop(megabytes, overhead) as loop:
        loop.run(SKIPPED + checkpoints)
        fast = len(loop.begins) - 1
        # So that a checkpoint takes 100 steps.
        slow_s = 100 * loop.saved()[-1].step_s
        speed[0] = megabytes * 1e6 / slow_s
        loop.run(checkpoints + 2)
    saved = loop.saved()
    row = "  ".join(f"{entry.interval}" for entry in saved[fast:])
    interval = statistics.median(entry.interval for entry in saved[SKIPPED:fast])
    longest = max(entry.longest for entry in saved[fast:])
    print(f"  fast: each {interval:.0f} steps; slow, interval of each checkpoint: {row}")
    follows = all(entry.interval * entry.step_s >= 0.9 * slow_s for entry in saved[fast + 2 :])
    print(f"  within 2 checkpoints: {verdict(follows)}; longest step {longest:.1f} medians (goal: 2)")


def verdict(reached: bool) -> str:
    """Return the words for a goal."""
    return "goal reached" if reached else "goal missed"
