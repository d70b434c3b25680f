"""The probe against loops whose times are set: the parts of their time, and the speed after each change.

    python -m benchmarks.stalls [--steps 20] [--repeats 8] [--cases 24]

Each loop waits for its model, for preparation and, the first time a batch is read, for reading. Three kinds of loaders
have the same times: one in the loop itself, two worker processes of PyTorch's DataLoader, and a pipeline of two
threads. A change is predicted by the probe; then the changed loader is built and measured. Goals: the parts of the time
within 3 points of the set times, speeds within 4 % of the measured ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.training import NoCheckpoint
from gavel.training import LeasedIterator
from gavel.training.data.probing import answer
from gavel.training.data.stalls import IN_TURN, PIPELINED, WORKERS

# Milliseconds a step of the model, of preparation and of reading. In a pipeline, reading that is not slower than
# preparation is invisible to a probe, and would slow it again after other changes: `docs/training.md` says so.
TIMES_MS = (
    (30, 8, 4),
    (15, 30, 6),
    (15, 6, 36),
    (15, 24, 30),
    (12, 36, 3),
    (40, 16, 16),
    (10, 10, 28),
    (18, 27, 10),
)
KINDS = (IN_TURN, WORKERS, PIPELINED)
WORKER_COUNT = 2
LENGTH = 2000
# The end of a wait in which the CPU stays busy: a sleep may end so much later.
SPIN_S = 0.001
# The threads of a process without a pipeline: its own, and one that feeds a queue of workers.
THREADS = 2
# Two rates of one loop agree if they differ by no more.
AGREE = 0.985
GOAL_POINTS, GOAL_PERCENT = 3.0, 4.0


@dataclass(frozen=True)
class Times:
    """A loop: the kind of its loader, and the seconds of a step, which workers share."""

    kind: str
    model_s: float
    prep_s: float
    fetch_s: float

    def period_s(self, fetch_s: float) -> float:
        """Return the seconds of a whole step if reading takes so long."""
        if self.kind == IN_TURN:
            return self.model_s + self.prep_s + fetch_s
        if self.kind == WORKERS:
            return max(self.model_s, self.prep_s + fetch_s)
        return max(self.model_s, self.prep_s, fetch_s)

    def parts(self) -> tuple[float, float, float]:
        """Return the parts of the time that compute, and wait for preparation and for reading."""
        real_s, cached_s = self.period_s(self.fetch_s), self.period_s(0.0)
        return self.model_s / real_s, (cached_s - self.model_s) / real_s, (real_s - cached_s) / real_s


def pause(length_s: float) -> None:
    """Wait for so long, and more exactly than by sleeping alone, unless other threads would have to wait for it."""
    until_s = time.perf_counter() + length_s
    spin_s = SPIN_S if threading.active_count() <= THREADS else 0.0
    time.sleep(max(0.0, length_s - spin_s))
    while time.perf_counter() < until_s:
        pass


class Batches:
    """A data set whose items sleep as long as reading and preparation take; processes share what was read."""

    def __init__(self, fetch_s: float, prep_s: float, cached: float = 0.0, workers: int = 1) -> None:
        """Keep all, none or every other batch of each worker in the cache."""
        self.fetch_s, self.prep_s = fetch_s, prep_s
        self._read = mmap.mmap(-1, LENGTH)
        for index in range(LENGTH):
            self._read[index] = cached == 1.0 or (cached == 0.5 and index // workers % 2 == 1)

    def __len__(self) -> int:
        return LENGTH

    def fetch(self, index: int) -> None:
        """Read an item."""
        if not self._read[index]:
            pause(self.fetch_s)
        self._read[index] = 1

    def __getitem__(self, index: int) -> int:
        self.fetch(index)
        pause(self.prep_s)
        return index


class InTurn:
    """A loader that loads in the loop itself."""

    num_workers = 0

    def __init__(self, data: Batches) -> None:
        self._data = data

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return (self._data[index] for index in range(LENGTH))


class Pipeline:
    """A loader with a thread that reads and one that prepares."""

    def __init__(self, data: Batches) -> None:
        self._data = data

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        data = self._data
        read: queue.Queue[int] = queue.Queue(2)
        prepared: queue.Queue[int] = queue.Queue(2)
        over = threading.Event()

        def put(to: queue.Queue[int], index: int) -> None:
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    to.put(index, timeout=0.05)
                    return

        def reader() -> None:
            for index in range(LENGTH):
                if over.is_set():
                    return
                data.fetch(index)
                put(read, index)

        def preparer() -> None:
            while not over.is_set():
                try:
                    index = read.get(timeout=0.05)
                except queue.Empty:
                    continue
                pause(data.prep_s)
                put(prepared, index)

        threads = [threading.Thread(target=each, daemon=True) for each in (reader, preparer)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(LENGTH):
                yield prepared.get()
        finally:
            over.set()
            for thread in threads:
                thread.join()


def loader_of(times: Times, cached: float = 0.0) -> Any:
    """Return the loader of a loop, with this part of its data in the cache."""
    if times.kind != WORKERS:
        data = Batches(times.fetch_s, times.prep_s, cached)
        return InTurn(data) if times.kind == IN_TURN else Pipeline(data)
    from torch.utils.data import DataLoader

    data = Batches(times.fetch_s * WORKER_COUNT, times.prep_s * WORKER_COUNT, cached, WORKER_COUNT)
    return DataLoader(data, batch_size=None, num_workers=WORKER_COUNT, multiprocessing_context="fork")  # type: ignore[arg-type]


@contextlib.contextmanager
def environment(mode: str, steps: int, report: Path) -> Iterator[None]:
    """Ask for a probe within this block."""
    names = {"GAVEL_PROBE": mode, "GAVEL_PROBE_STEPS": str(steps), "GAVEL_PROBE_FILE": str(report)}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def report_of(mode: str, loader: Any, model_s: float, steps: int) -> dict[str, Any]:
    """Run a loop under a probe, and return the report."""
    with tempfile.TemporaryDirectory() as folder, environment(mode, steps, Path(folder, "report")):
        try:
            for _ in LeasedIterator(loader, checkpoint=NoCheckpoint(), steps=LENGTH):
                pause(model_s)
        except SystemExit:
            pass
        content: dict[str, Any] = json.loads(Path(folder, "report").read_text())
        return content


def changed(times: Times) -> dict[tuple[str, float], Any]:
    """Return loaders that are changed as the probe predicts, by the change."""
    if times.kind == IN_TURN:
        # As many workers as CPUs instead of none.
        prep_s, fetch_s = times.prep_s / WORKER_COUNT, times.fetch_s / WORKER_COUNT
        more_cpus = loader_of(Times(WORKERS, times.model_s, prep_s, fetch_s))
        cpus = WORKER_COUNT
    else:
        # CPUs that prepare twice as much for the same readers.
        more_cpus = loader_of(replace(times, prep_s=times.prep_s / 2))
        cpus = 2 * WORKER_COUNT
    return {
        ("cpus", float(cpus)): more_cpus,
        ("cache", 0.5): loader_of(times, cached=0.5),
        ("cache", 1.0): loader_of(times, cached=1.0),
        ("disk", 2.0): loader_of(replace(times, fetch_s=times.fetch_s / 2)),
    }


def run_case(times: Times, steps: int, repeats: int) -> tuple[dict[str, Any], dict[tuple[str, float], float]]:
    """Probe a loop; return the answer, and the error of each predicted speed in percent of the measured one.

    All runs are interleaved. The greatest of each rate counts, because other programs only slow a run down: there are
    runs until the two greatest of each agree, and at most so many.
    """
    reports: dict[str, list[dict[str, Any]]] = {"real": [], "cached": [], "synthetic": []}
    rates: dict[tuple[str, float], list[float]] = {}
    for _ in range(repeats):
        loader = loader_of(times)
        for mode, earlier in reports.items():
            earlier.append({**report_of(mode, loader, times.model_s, steps), "cpus": WORKER_COUNT})
        for change, other in changed(times).items():
            rates.setdefault(change, []).append(report_of("real", other, times.model_s, steps)["rate"])
        probed = [[report["rate"] for report in several] for several in reports.values()]
        loading = [report["loading_rate"] for report in reports["cached"]]
        if all(_agree(several) for several in (*probed, loading, *rates.values())):
            break
    result = answer(*(_fastest(several) for several in reports.values()))
    predicted = {(change["change"], change["to"]): change["rate"] for change in result["what_if"]}
    return result, {change: 100 * (predicted[change] / max(several) - 1) for change, several in rates.items()}


def _agree(rates: list[float]) -> bool:
    """Return whether the two greatest rates are the same, but for noise."""
    greatest = sorted(rates)[-2:]
    return len(greatest) == 2 and greatest[0] >= AGREE * greatest[1]


def _fastest(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report with the greatest of the rates."""
    rates = {
        name: max(report[name] for report in reports)
        for name in ("rate", "loading_rate")
        if reports[0][name] is not None
    }
    return {**reports[0], **rates}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="the measured steps of each run, a multiple of 20"
    )
    parser.add_argument("--cases", type=int, default=len(TIMES_MS) * len(KINDS), help="how many loops")
    parser.add_argument(
        "--repeats", type=int, default=8, help="the most runs of each kind, of which the fastest counts"
    )
    options = parser.parse_args()
    print(
        f"{'loader':<10}{'model prep read':>18}{'computes':>10}{'prep':>8}{'read':>8}{'points off':>12}",
        end="",
    )
    print(f"{'cpus':>8}{'half':>8}{'all':>8}{'disk':>8}  % off measured; helps most")
    points, percents, wrong = [], [], 0
    cases = [(kind, times) for times in TIMES_MS for kind in KINDS]
    for kind, times_ms in cases[: options.cases]:
        times = Times(kind, *(each / 1000 for each in times_ms))
        result, errors = run_case(times, options.steps, options.repeats)
        parts = [result[name] for name in ("busy", "prep", "fetch")]
        off = max(100 * abs(part - expected) for part, expected in zip(parts, times.parts(), strict=True))
        points.append(off)
        percents += [abs(error) for error in errors.values()]
        wrong += off > GOAL_POINTS or max(map(abs, errors.values())) > GOAL_PERCENT
        best = result["best"]
        print(f"{kind:<10}{'{:>6}{:>5}{:>5} ms'.format(*times_ms):>18}", end="")
        print("".join(f"{part:>9.1%}" for part in parts) + f"{off:>11.1f}", end=" ")
        print("".join(f"{error:>+8.1f}" for error in errors.values()), end="  ")
        print(f"{best['change']} {best['to']:g}" if best else "nothing", flush=True)
    print(f"parts of the time: median {statistics.median(points):.2f}, worst {max(points):.2f} points off")
    print(f"predicted speeds: median {statistics.median(percents):.2f}, worst {max(percents):.2f} % off")
    print(f"cases beyond {GOAL_POINTS:g} points or {GOAL_PERCENT:g} %: {wrong} of {len(points)}")


if __name__ == "__main__":
    main()
