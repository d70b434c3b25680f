"""The probe of a loop: `GAVEL_PROBE` makes a `LeasedIterator` measure its loader for some steps, and end the script.

| GAVEL_PROBE | the loop gets | measured |
|---|---|---|
| synthetic | its first batch, again and again | the rate of the model alone |
| real | batches that were not read before | the rate of the loop with its data |
| cached | the same batches as before, when all of them have just been read | the rate with data in memory |
| cpus=N | the same as cached, on N CPUs and with N workers | how much N CPUs prepare |

Nothing is loaded from a checkpoint, and nothing is saved. The script ends with exit code 0 after the last step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gavel.training.checkpoint import rng
from gavel.training.data.counters import counters_of
from gavel.training.data.kept import DIRECTORY
from gavel.training.environment import available_cpus
from gavel.training.errors import EnvironmentFault, TrainingError

MODE, STEPS, FILE, DATA = "GAVEL_PROBE", "GAVEL_PROBE_STEPS", "GAVEL_PROBE_FILE", "GAVEL_PROBE_DATA"
STEPS_DEFAULT = 100
# Steps that are done before the measured ones, because first steps are slow; at least as many as there are workers.
WARM_STEPS = 3
# The number of blocks into which the measured steps are divided.
BLOCKS = 5


@dataclass
class Report:
    """The measurements of one process of a probe. Rates are in steps per second."""

    mode: str
    steps: int = 0
    rate: float | None = None
    # The rate of the loader by itself, with data that was read before.
    loading_rate: float | None = None
    # The number of workers of the loader; None if it has no such number.
    workers: int | None = None
    cpus: int = 1
    # Files that were dropped from the page cache before they were read; bytes that came from storage, if that is known.
    dropped: int = 0
    from_storage: int | None = None
    # Bytes that the data set counted, if it counts.
    fetched: float | None = None
    faults: list[str] = field(default_factory=list)


class Probe:
    """The measurement that `GAVEL_PROBE` asks for, of one loader."""

    def __init__(self, loader: Iterable[Any], mode: str, cpus: int | None, steps: int, file: str) -> None:
        self._loader, self._mode, self._steps, self._file = loader, mode, steps, file
        self._report = Report(mode if cpus is None else f"cpus={cpus}", cpus=available_cpus())
        if cpus is not None:
            self._use(cpus)
        workers = getattr(loader, "num_workers", None)
        self._report.workers = workers if isinstance(workers, int) else None
        # Batches of several workers arrive together, so whole rounds of all workers are measured.
        self._round = max(1, workers) if isinstance(workers, int) else 1
        self._skip = max(WARM_STEPS, self._round)

    def batches(self) -> Iterator[Any]:
        """Iterate over the batches of the probe; then write its report."""
        report = self._report
        if self._mode == "synthetic":
            first = next(iter(self._loader), None)
            if first is None:
                raise TrainingError("the loader returned no batch: is the data set empty?")
            report.rate = yield from self._timed(itertools.repeat(first), self._count(None))
        else:
            count = self._count(_length(self._loader))
            if self._mode == "real":
                report.rate = yield from self._real(count)
            else:
                with _keeping():
                    # Twice without the model: until all batches have been read, and to measure the loader by itself.
                    began_rng = rng.snapshot()
                    for _ in range(2):
                        report.loading_rate = _exhausted(self._timed(iter(self._loader), count))
                        rng.restore(began_rng)
                    report.rate = yield from self._timed(iter(self._loader), count)
        self._write()

    def _real(self, count: int) -> Generator[Any, None, float]:
        report, counters = self._report, counters_of(self._loader)
        report.dropped = drop_from_page_cache(_files(self._loader))
        before, counted = _from_storage(), counters.read().bytes if counters is not None else 0.0
        rate = yield from self._timed(iter(self._loader), count)
        after = _from_storage()
        if before is not None and after is not None:
            report.from_storage = max(0, after - before)
        if counters is not None:
            report.fetched = counters.read().bytes - counted
        return rate

    def _timed(self, batches: Iterator[Any], count: int) -> Generator[Any, None, float]:
        """Iterate over the first batches, and those that are measured. Return the steps per second of the latter.

        That is the median of some blocks of steps, because other programs disturb single ones.
        """
        block = max(self._round, count // BLOCKS // self._round * self._round)
        times_s, done = [], 0
        for index, batch in enumerate(batches):
            done = index - self._skip
            if done >= 0 and (done % block == 0 or done == count):
                _wait_for_gpu()
                times_s.append(time.perf_counter())
            if done == count:
                break
            yield batch
        if len(times_s) < 2:
            raise TrainingError(
                f"the loader ended after {done + self._skip + 1} batches; a probe needs {self._skip + block + 1}: "
                "use more data, or smaller batches"
            )
        # A last block that is shorter does not count.
        whole = times_s[: 1 + min(done, count) // block]
        self._report.steps = (len(whole) - 1) * block
        return block / statistics.median(after - before for before, after in zip(whole, whole[1:]))

    def _count(self, length: int | None) -> int:
        """Return how many steps are measured: whole rounds of all workers, no more than the data has batches."""
        # The batch after the last measured step is loaded within that step.
        count = self._steps if length is None else min(self._steps, length - self._skip - 1)
        if count < self._round:
            count = self._round
            if length is not None and length - self._skip - 1 < count:
                raise TrainingError(
                    f"the loader has {length} batches, and a probe needs {self._skip + self._round + 1}: "
                    "use more data, or smaller batches"
                )
        return count // self._round * self._round

    def _use(self, cpus: int) -> None:
        """Run on so many CPUs, with as many workers, if the loader has any."""
        loader: Any = self._loader
        if hasattr(os, "sched_setaffinity"):
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, allowed[:cpus])
            self._report.cpus = min(cpus, len(allowed))
        else:
            self._report.faults.append("this system cannot bind a process to CPUs")
        if getattr(loader, "num_workers", 0):
            loader.num_workers = cpus

    def _write(self) -> None:
        aside = f"{self._file}.new"
        with open(aside, "w", encoding="ascii") as file:
            json.dump(asdict(self._report), file)
        os.replace(aside, self._file)


def probe_of(loader: Iterable[Any]) -> Probe | None:
    """Return the probe that the environment asks for; None if it asks for none."""
    mode = os.environ.get(MODE, "")
    if not mode:
        return None
    number = mode.removeprefix("cpus=") if mode.startswith("cpus=") else ""
    cpus = int(number) if number.isascii() and number.isdigit() and int(number) > 0 else None
    if cpus is None and mode not in ("synthetic", "real", "cached"):
        raise EnvironmentFault(
            f"{MODE} is '{mode}': expected synthetic, real, cached or cpus=N, such as cpus=2"
        )
    steps = os.environ.get(STEPS) or str(STEPS_DEFAULT)
    if not (steps.isascii() and steps.isdigit() and int(steps) > 0):
        raise EnvironmentFault(f"{STEPS} is '{steps}': expected a whole number above 0, such as 100")
    return Probe(loader, "cached" if cpus else mode, cpus, int(steps), os.environ.get(FILE) or os.devnull)


def drop_from_page_cache(paths: Iterable[str]) -> int:
    """Ask the kernel to forget the content of these files; return how many it was asked for."""
    dropped = 0
    if not hasattr(os, "posix_fadvise"):
        return 0
    for path in {os.path.realpath(path) for path in paths}:
        with contextlib.suppress(OSError, ValueError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                dropped += 1
            finally:
                os.close(file)
    return dropped


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    """Have data sets of this library keep the samples that they read, within this block."""
    directory = tempfile.mkdtemp(prefix="gavel-kept-")
    os.environ[DIRECTORY] = directory
    try:
        yield
    finally:
        del os.environ[DIRECTORY]
        # A worker may still add a sample.
        shutil.rmtree(directory, ignore_errors=True)


def _files(loader: object) -> Iterator[str]:
    """Yield the files of which the data is known to be made: those of the data set, and those below named paths."""
    files = getattr(getattr(loader, "dataset", None), "files", None)
    if isinstance(files, (list, tuple)):
        yield from (os.fspath(file) for file in files if isinstance(file, (str, os.PathLike)))
    for place in filter(None, os.environ.get(DATA, "").split(os.pathsep)):
        if os.path.isfile(place):
            yield place
        for directory, _, names in os.walk(place):
            yield from (os.path.join(directory, name) for name in names)


def _from_storage() -> int | None:
    """Return the bytes that this process and its workers have read from storage; None if the system does not say."""
    total = 0
    multiprocessing = sys.modules.get("multiprocessing")
    children = multiprocessing.active_children() if multiprocessing is not None else []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for process in ("self", *(str(child.pid) for child in children)):
            with open(f"/proc/{process}/io", encoding="ascii") as file:
                lines = dict(line.split(": ", 1) for line in file)
            total += int(lines.get("read_bytes", 0))
        return total
    return None


def _exhausted(batches: Generator[Any, None, float]) -> float:
    """Take all batches, and return what the generator returns."""
    while True:
        try:
            next(batches)
        except StopIteration as end:
            rate: float = end.value
            return rate


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _wait_for_gpu() -> None:
    """Wait until the GPU has done all that it was given, because steps return before."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
