"""Loops with `every="auto"`: what their checkpoints cost at the interval that they choose, and how it follows.

A step while a checkpoint is in progress is compared with the steps without one before and after it. The pause for the
copy counts in full. Both are measured here, and not by the tuner, whose own estimate is printed beside them.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.checkpoint_ways import Cost, Training, block, quantile
from gavel.training import LeasedIterator, TorchCheckpoint
from gavel.training.checkpoint.atomic import ChecksumFile

# By how many points the overhead may be above the bound.
SLACK = 0.005
# The first checkpoints of a loop allocate memory and end its profile.
SKIPPED = 2
# How many steps without a checkpoint, before and after one, are the base of its cost at least.
BASE_STEPS = 10
# How long a loop may run; before and after each start of the neighbours.
LONGEST_S, PART_S = 600.0, 45.0
# How often the neighbours start, and how many checkpoints are taken with them then.
STARTS, BESIDE = 3, 5
NEIGHBOURS = 2
# A step that takes more medians is late.
LATE = 2.0
TIME_OVER = "  too few checkpoints in the time for this case"
BUSY = """
from benchmarks.checkpoint_ways import Training
training = Training(25)
print("ready", flush=True)
while True:
    training.step()
"""


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
    # The cost as the tuner has measured it.
    estimate: float
    step_s: float
    # The steps while it was written, and as many without any checkpoint after it, in medians of the latter.
    beside: list[float]
    without: list[float]


class Loop:
    """A training loop with `every="auto"`.

    If `rests` is set, as many steps as a checkpoint was in progress follow it, of which the loop knows nothing.
    """

    def __init__(self, training: Training, folder: Path, overhead: float) -> None:
        checkpoint = TorchCheckpoint(
            folder, background=True, model=training.model, optimizer=training.optimizer
        )
        self._training = training
        self._loop = LeasedIterator(range(1 << 40), checkpoint=checkpoint, every="auto", overhead=overhead)
        self._batches = iter(self._loop)
        next(self._batches)
        self.rests = False
        self.steps: list[Step] = []
        # The indexes in `steps` after which checkpoints began; by index, the loop time that each took by the tuner, and
        # the times of the steps after it of which the loop knows nothing.
        self.begins: list[int] = []
        self._stalls_s: dict[int, float] = {}
        self._rests_s: dict[int, list[float]] = {}

    def run(self, checkpoints: int, longest_s: float = LONGEST_S) -> None:
        """Run until so many more checkpoints have begun, or the time is over."""
        until_s, count = time.monotonic() + longest_s, len(self.begins) + checkpoints
        while len(self.begins) < count and time.monotonic() < until_s:
            persist = self._persist
            began = Cost.now()
            self._training.step()
            step = Cost.since(began)
            began = Cost.now()
            next(self._batches)
            in_flight = persist.step if persist is not None else None
            self.steps.append(Step(step, Cost.since(began).clock_s, in_flight))
            if self._persist is persist:
                continue
            if persist is not None:
                self._persist_ended()
            if self._persist is not None:
                self.begins.append(len(self.steps) - 1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Enclose what is no step of the loop."""
        yield
        assert self._loop._auto is not None
        self._loop._auto.restart_step()

    def close(self) -> None:
        """Wait for the checkpoint in progress."""
        self._loop._saver._wait()

    @property
    def _persist(self) -> Any:
        return self._loop._saver._persist

    def _persist_ended(self) -> None:
        """Record the estimate of the tuner, and rest."""
        assert self._loop._auto is not None
        begin = self.begins[-1]
        self._stalls_s[begin] = self._loop._auto.tuner.own_stall_s
        with self.paused():
            steps = len(self.steps) - 1 - begin if self.rests else 0
            self._rests_s[begin] = [block(self._training, 1).clock_s for _ in range(steps)]

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
        rest_s = self._rests_s.get(begin, [])
        usual_s = statistics.median(rest_s or [step.step.clock_s for step in idle])
        return Saved(
            interval=end - begin,
            overhead=excess[0] + pause_s / (base[0] * (end - begin)),
            overhead_cpu=excess[1] + pause_s / (base[1] * (end - begin)),
            estimate=self._stalls_s.get(begin, 0.0) / (base[0] * (end - begin)),
            step_s=base[0],
            beside=[step.step.clock_s / usual_s for step in flight],
            without=[step_s / usual_s for step_s in rest_s],
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
    if not saved:
        print(TIME_OVER)
        return
    values = [entry.overhead for entry in saved]
    cpu = statistics.median(entry.overhead_cpu for entry in saved)
    estimate = statistics.median(entry.estimate for entry in saved)
    low, middle, high = (quantile(values, part) for part in (0.25, 0.5, 0.75))
    step_s = statistics.median(entry.step_s for entry in saved)
    interval = statistics.median(entry.interval for entry in saved)
    reached = verdict(middle <= overhead + SLACK)
    print(
        f"  bound {overhead:.1%}, {megabytes:g} MB: costs {middle:.2%} ({low:.2%} to {high:.2%}), by the tuner "
        f"{estimate:.2%}, processors {cpu:.2%}; each {interval:.0f} steps of {1e3 * step_s:.0f} ms, "
        f"{len(saved)} checkpoints; {reached}"
    )


def neighbour(megabytes: float, overhead: float, checkpoints: int) -> None:
    """Print what checkpoints cost before and after other jobs start on the same cores, several times."""
    with training_loop(megabytes, overhead) as loop, contextlib.ExitStack() as stack:
        loop.run(SKIPPED, 2 * PART_S)
        with loop.paused():
            neighbours = [stack.enter_context(busy_process()) for _ in range(NEIGHBOURS)]
        starts = []
        for _ in range(STARTS):
            loop.run(checkpoints, PART_S)
            starts.append(len(loop.begins) - 1)
            signal_all(neighbours, signal.SIGCONT)
            loop.run(BESIDE, PART_S)
            signal_all(neighbours, signal.SIGSTOP)
    print_neighbour(loop.saved(), starts, overhead)


@contextlib.contextmanager
def busy_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a neighbour, and stop it before it does much."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def signal_all(processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to all processes."""
    for process in processes:
        process.send_signal(number)


def print_neighbour(saved: list[Saved], starts: list[int], overhead: float) -> None:
    """Print the first checkpoints after each start of the neighbours, and those from the third on together."""
    if starts[0] <= SKIPPED:
        print(TIME_OVER)
        return
    alone = statistics.median(entry.overhead for entry in saved[SKIPPED : starts[0]])
    print(f"  alone {alone:.2%}; beside {NEIGHBOURS} neighbours, cost/interval of each checkpoint:")
    late = []
    for start in starts:
        # The neighbours start during the first of these.
        beside = saved[start : start + BESIDE]
        print("   ", "  ".join(f"{entry.overhead:.1%}/{entry.interval}" for entry in beside))
        late += [entry.overhead for entry in beside[2:]]
    if not late:
        print(TIME_OVER)
        return
    middle = statistics.median(late)
    print(
        f"  from the third on {middle:.2%} ({len(late)} checkpoints), bound {overhead:.1%}: "
        f"{verdict(middle <= overhead + SLACK)}"
    )


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
        loop.rests = True
        loop.run(checkpoints + 2)
    saved = loop.saved()
    row = "  ".join(f"{entry.interval}" for entry in saved[fast:])
    interval = statistics.median(entry.interval for entry in saved[SKIPPED:fast])
    print(f"  fast: each {interval:.0f} steps; slow, interval of each checkpoint: {row}")
    follows = all(entry.interval * entry.step_s >= 0.9 * slow_s for entry in saved[fast + 2 :])
    print(f"  within 2 checkpoints: {verdict(follows)}; the steps, in medians:")
    # The first checkpoint began while the disk was fast.
    for name, column in (
        ("while one is written", [entry.beside for entry in saved[fast + 1 :]]),
        ("without any, in turns", [entry.without for entry in saved[fast + 1 :]]),
    ):
        steps = list(itertools.chain.from_iterable(column))
        late = sum(step > LATE for step in steps) / len(steps)
        print(
            f"    {name:22} {len(steps)} steps, longest {max(steps):.2f}, p99 {quantile(steps, 0.99):.2f}, "
            f"{late:.2%} above {LATE:g}"
        )


def verdict(reached: bool) -> str:
    """Return the words for a goal."""
    return "goal reached" if reached else "goal missed"
