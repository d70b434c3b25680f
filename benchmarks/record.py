"""Record what Gavel's main operations cost in benchmarks/history.csv, or compare this tree with the last record.

    make bench-record                 measure, and append a record
    make bench-compare                measure, and compare with the last record; exit code 1 if a figure got dearer
    .venv/bin/python -m benchmarks.record --draw FILE     draw the history

A figure is processor time, so other programs on the machine disturb it little. A reference loop of fixed work is timed
before and after each figure. The figure divided by the time of that loop is `loops`, which is comparable between
machines and days.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import msgspec

from benchmarks.journal import fill, recover, simulated_records
from benchmarks.service import Daemon, submit_many
from benchmarks.service import cpu_s as process_cpu_s
from benchmarks.workloads import cluster
from policies.registry import resolve
from scheduler.journal.record import Record
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate

HISTORY = Path(__file__).with_name("history.csv")
REPEATS = 3
# A figure that grows by more than this fraction, in reference loops, is called dearer.
LIMIT = 0.15
SIMULATED_JOBS, POLICY_JOBS, PROBLEMS, FACTS, SUBMITTED_JOBS, STARTS = 1200, 1000, 5, 100_000, 10_000, 3

Clock = Callable[[], float]
Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a figure, and the times of the reference loop before and after it."""

    cpu_s: float
    before_s: float
    after_s: float

    @property
    def loops(self) -> float:
        """The number of reference loops that the machine could have done in this time."""
        return self.cpu_s / ((self.before_s + self.after_s) / 2)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the history: one figure of one record. All lines of a record have the same `at`."""

    at: str
    commit: str
    machine: str
    figure: str
    cpu_s: float
    reference_s: float
    loops: float


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in the record and at present; `before` is None if the record does not have it."""

    figure: str
    before: float | None
    current: float

    @property
    def growth(self) -> float:
        """The growth of the figure, as a fraction of the record; 0 if the record does not have it."""
        return self.current / self.before - 1 if self.before else 0.0

    @property
    def dearer(self) -> bool:
        """Whether the figure has grown by more than noise explains."""
        return self.growth > LIMIT


def reference_s() -> float:
    """Time a loop of fixed work. Never change the work: all records are relative to it."""
    began_s = time.process_time()
    table: dict[int, float] = {}
    for number in range(1_000_000):
        key = number * 7919 % 1009
        table[key] = table.get(key, 0.0) + number * 0.5
    return time.process_time() - began_s


def samples(measure: Measure, repeats: int = REPEATS, reference: Clock = reference_s) -> Iterator[Sample]:
    """Measure a figure several times, each time between two reference loops."""
    before_s = reference()
    for _ in range(repeats):
        cpu_s = measure()
        after_s = reference()
        yield Sample(cpu_s, before_s, after_s)
        before_s = after_s


def middle(measurements: Iterable[Sample]) -> Sample:
    """Return the sample with the median of the loops (for an even number of samples, the lower one)."""
    ordered = sorted(measurements, key=lambda sample: sample.loops)
    return ordered[(len(ordered) - 1) // 2]


def last_record(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the newest record."""
    return [row for row in rows if row.at == rows[-1].at]


def changes(record: Sequence[Row], current: Sequence[Row]) -> list[Change]:
    """Compare figures by their loops; leave out figures that only the record has."""
    before = {row.figure: row.loops for row in record}
    return [Change(row.figure, before.get(row.figure), row.loops) for row in current]


def read_history(path: Path) -> list[Row]:
    """Read all rows, oldest first; an empty list if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [msgspec.convert(line, Row, strict=False) for line in csv.DictReader(file)]


def append_history(path: Path, rows: Iterable[Row]) -> None:
    """Append rows, with a header if the file is new."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            lines.writeheader()
        lines.writerows(
            {
                name: f"{value:.4g}" if isinstance(value, float) else value
                for name, value in asdict(row).items()
            }
            for row in rows
        )


def simulation() -> float:
    """Return the CPU time of a simulation of the mixed day's jobs under las."""
    gpus = {"v100": 32, "a100": 32, "t4": 32}
    run = Run(policy="las", cluster=gpus, workload="mixed-day", rate_per_h=8.0, jobs=SIMULATED_JOBS, seed=1)
    options = prepare(run).options
    return _cpu_s(lambda: simulate(options))


def allocation(policy: str) -> float:
    """Return the CPU time of solving PROBLEMS problems, each of jobs that are all different."""
    solve = resolve(policy)
    # The first problem loads the solvers, so it is not timed.
    solve(cluster(4, None))
    problems = [cluster(POLICY_JOBS, None, load=2.0 + number) for number in range(PROBLEMS)]
    return _cpu_s(lambda: [solve(problem) for problem in problems])


def journal_append() -> float:
    """Return the CPU time of appending the records of a simulated cluster, without waiting for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        return _cpu_s(lambda: fill(Path(folder, "journal.db"), _records(), durable=False))


def journal_recovery() -> float:
    """Return the CPU time of opening such a journal and recovering the state from its beginning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        fill(path, _records(), durable=False)
        return _cpu_s(lambda: recover(path))


def submission() -> float:
    """Return the CPU time of scheduler and client for batches of submissions; the journal is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder))
        try:
            began_s = process_cpu_s(daemon.process.pid)
            own_s = _cpu_s(lambda: asyncio.run(submit_many(daemon.address, SUBMITTED_JOBS)))
            return own_s + process_cpu_s(daemon.process.pid) - began_s
        finally:
            daemon.stop()


def start(*arguments: str) -> float:
    """Return the mean CPU time of a few starts of Python with these arguments, which make it end at once."""
    began_s = _children_cpu_s()
    for _ in range(STARTS):
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (_children_cpu_s() - began_s) / STARTS


FIGURES: dict[str, Measure] = {
    "start gavel --help": partial(start, "-m", "gavel", "--help"),
    "start gavel queue": partial(start, "-c", "import gavel.cli.jobs.queue, gavel.client"),
    "start a scheduler": partial(start, "-m", "scheduler", "--help"),
    "start an agent": partial(start, "-m", "worker_agent", "--help"),
    "import gavel.training": partial(start, "-c", "import gavel.training"),
    f"simulate {SIMULATED_JOBS} jobs under las": simulation,
    **{
        f"allocate {PROBLEMS} × {POLICY_JOBS} jobs by {policy}": partial(allocation, policy)
        for policy in ("las", "finish_time_fairness", "water_filling", "makespan")
    },
    "append to a journal": journal_append,
    "recover from a journal": journal_recovery,
    f"submit {SUBMITTED_JOBS} jobs": submission,
}


def measure_all(figures: dict[str, Measure]) -> list[Row]:
    """Measure each figure and print it; all rows have the same time, commit and machine."""
    at, commit, machine = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", _commit(), _machine()
    rows = []
    for name, measure in figures.items():
        sample = middle(samples(measure))
        reference = (sample.before_s + sample.after_s) / 2
        rows.append(Row(at, commit, machine, name, sample.cpu_s, reference, sample.loops))
        print(f"{name:<48}{sample.cpu_s:>9.3f} s{sample.loops:>10.3g} loops", flush=True)
    return rows


def compare(record: Sequence[Row], current: Sequence[Row]) -> int:
    """Print how the figures have changed; return the exit code, which is 1 if one is dearer."""
    print(f"\nagainst {record[0].commit} of {record[0].at} on {record[0].machine}, in loops:")
    compared = changes(record, current)
    for change in compared:
        before = "none" if change.before is None else f"{change.before:.3g}"
        mark = "  dearer" if change.dearer else ""
        print(f"{change.figure:<48}{before:>9}{change.current:>9.3g}{change.growth:>+9.0%}{mark}")
    return int(any(change.dearer for change in compared))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw each figure over the records, as a multiple of its first one."""
    from matplotlib.figure import Figure

    records = list(dict.fromkeys((row.at, row.commit) for row in rows))
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row.figure for row in rows):
        points = {(row.at, row.commit): row.loops for row in rows if row.figure == name}
        first = next(iter(points.values()))
        axes.plot(
            [records.index(key) for key in points],
            [loops / first for loops in points.values()],
            "o-",
            label=name,
        )
    axes.set_xticks(range(len(records)), [f"{at[:10]}\n{commit}" for at, commit in records])
    axes.set_ylabel("reference loops, as a multiple of the first record")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path)


def main() -> int:
    """Record, compare or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--compare", action="store_true", help="compare with the last record and write nothing"
    )
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the history and measure nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose name contains this")
    options = parser.parse_args()
    history = read_history(HISTORY)
    if (options.compare or options.draw) and not history:
        parser.error(f"{HISTORY.name} has no record yet")
    if options.draw:
        draw(history, options.draw)
        return 0
    rows = measure_all({name: measure for name, measure in FIGURES.items() if options.only in name})
    if options.compare:
        return compare(last_record(history), rows)
    append_history(HISTORY, rows)
    return 0


@cache
def _records() -> list[Record]:
    return simulated_records(FACTS)


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _commit() -> str:
    """Return the commit, with a plus sign if there are uncommitted changes."""
    command = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    return subprocess.run(
        command, cwd=HISTORY.parent, check=True, capture_output=True, text=True
    ).stdout.strip()


def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} × {model} with Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
