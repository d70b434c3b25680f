"""Measure the history of leases, rounds and shares beside a simulated run with its journal.

    python -m benchmarks.past [--jobs 1200]

One table: how long the run takes, how long the ledger takes to turn its records into rows, and the file to write them;
the size of a lease; and how long a start takes to make the whole file again. Times are processor times, the least of
several passes: other processes on the machine lengthen some passes, but seldom all.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

import msgspec

from scheduler.core.state import SchedulerState
from scheduler.journal.store import BATCH_RECORDS, SqliteJournal
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.ledger import Ledger
from scheduler.live.observe.past_rows import PastLease, Row
from scheduler.live.observe.position import Position
from scheduler.live.observe.timeline import Timeline, add
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate

# How many records one write covers: as many as the journal of a simulation writes at once.
RECORDS_PER_WRITE = BATCH_RECORDS
# How often the run is simulated, and how often its history is written.
RUNS, PASSES = 2, 7


def simulated_s(run: Run, path: Path) -> float:
    """Simulate a run with a journal at this path; return the processor time."""
    with SqliteJournal(path, durable=False) as journal:
        simulation = msgspec.structs.replace(prepare(run).options, journal=journal)
        began_s = time.process_time()
        simulate(simulation)
        return time.process_time() - began_s


def written(journal: SqliteJournal, path: Path) -> tuple[float, float, int, int]:
    """Write the rows of a journal; return the time of the ledger and of the file, and the counts of leases and rows."""
    file, ledger = HistoryFile(path), Ledger(SchedulerState())
    ledger_s = file_s = 0.0
    leases = count = 0
    records = list(journal.records())
    # A scheduler does not keep its records, so the garbage collector must not look through them.
    gc.collect()
    gc.freeze()
    for start in range(0, len(records), RECORDS_PER_WRITE):
        batch = records[start : start + RECORDS_PER_WRITE]
        rows: list[Row] = []
        began_s = time.process_time()
        for record in batch:
            rows += ledger.take(*record)
        ledger_s += time.process_time() - began_s
        if rows:
            position = Position(batch[-1].seq, batch[-1].now_s)
            began_s = time.process_time()
            add(file, rows, position)
            file_s += time.process_time() - began_s
        leases += sum(type(row) is PastLease for row in rows)
        count += len(rows)
    file.close()
    return ledger_s, file_s, leases, count


def made_again_s(journal: SqliteJournal, path: Path) -> float:
    """Make a new file from the journal, as a start does; return the processor time."""
    file = HistoryFile(path)
    began_s = time.process_time()
    Timeline(file, journal, SchedulerState())
    again_s = time.process_time() - began_s
    file.close()
    return again_s


def size_bytes(path: Path, tables: str) -> int:
    """Return the bytes of these tables and their indexes, as far as they hold rows."""
    file = HistoryFile(path)
    total: int = file.rows("SELECT sum(pgsize) FROM dbstat WHERE name GLOB ?", (tables,))[0][0]
    file.close()
    return total


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1200)
    options = parser.parse_args()
    run = Run(
        policy="las",
        cluster={"v100": 32, "a100": 32, "t4": 32},
        workload="mixed-day",
        rate_per_h=8.0,
        jobs=options.jobs,
        report_interval_s=120.0,
        seed=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"journal{number}.db" for number in range(RUNS)]
        run_s = min(simulated_s(run, path) for path in paths)
        with SqliteJournal(paths[0], durable=False) as journal:
            histories = [Path(folder) / f"history{number}.db" for number in range(PASSES)]
            passes = [written(journal, path) for path in histories]
            again_s = min(
                made_again_s(journal, Path(folder) / f"again{number}.db") for number in range(PASSES)
            )
        ledger_s, file_s, leases, rows = (min(column) for column in zip(*passes, strict=True))
        per_lease = size_bytes(histories[0], "lease*") / leases
    for name, value in (
        ("jobs", f"{options.jobs:,}"),
        ("leases", f"{leases:,}"),
        ("rows in all", f"{rows:,}"),
        ("simulated run with its journal", f"{run_s:.2f} s"),
        ("ledger", f"{ledger_s:.2f} s, {100 * ledger_s / run_s:.2f} %"),
        ("file", f"{file_s:.2f} s, {100 * file_s / run_s:.2f} %"),
        ("both", f"{100 * (ledger_s + file_s) / run_s:.2f} % of the run"),
        ("a lease, with its indexes", f"{per_lease:.0f} bytes"),
        ("made again from the journal", f"{again_s:.2f} s"),
    ):
        print(f"{name:<32}{value:>24}")


if __name__ == "__main__":
    main()
