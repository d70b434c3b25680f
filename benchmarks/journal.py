"""How long the journal takes to append records, durably or not, and to recover, with a snapshot or without.

    python -m benchmarks.journal [--facts 1000000]

The facts are those of a simulated cluster of 96 GPUs that runs jobs until there are enough facts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from scheduler.journal.codec import decode_facts, encode_facts
from scheduler.journal.record import Record
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate
from tests.support.journals import MemoryJournal

# How many records are appended durably.
DURABLE = 2000
# The fraction of the records that the snapshot replaces; recovery applies the others.
SNAPSHOT_AT = 0.99
# An estimate, to choose the number of jobs.
FACTS_PER_JOB = 170
# How often agents report the progress of their jobs.
REPORT_S = 120.0


def simulated_records(facts: int) -> list[Record]:
    """Return the records of a simulated run with about this number of facts."""
    journal = MemoryJournal()
    run = Run(
        policy="las",
        cluster={"v100": 32, "a100": 32, "t4": 32},
        workload="mixed-day",
        rate_per_h=8.0,
        jobs=max(facts // FACTS_PER_JOB, 20),
        report_interval_s=REPORT_S,
        seed=1,
    )
    simulate(msgspec.structs.replace(prepare(run).options, journal=journal))
    return list(journal.records())


def duration_s(work: Callable[[], object]) -> float:
    """Return how long this work takes, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def fill(path: Path, records: list[Record], *, durable: bool) -> None:
    """Write a journal of these records."""
    with SqliteJournal(path, durable=durable) as journal:
        for record in records:
            journal.append(record.now_s, record.facts)


def recover(path: Path) -> None:
    """Open a journal and recover its state, as a scheduler does when it starts."""
    with SqliteJournal(path) as journal:
        assert not recover_scheduler(journal).report()


def add_snapshot(path: Path, seq: int) -> float:
    """Write a snapshot of the state after record `seq`; return how long the writing alone takes."""
    copy = path.with_name("part.db")
    with SqliteJournal(path) as whole, SqliteJournal(copy, durable=False) as beginning:
        for record in whole.records():
            if record.seq > seq:
                break
            beginning.append(record.now_s, record.facts)
        state = recover_scheduler(beginning).state
        return duration_s(lambda: whole.write_snapshot(seq, state.snapshot()))


def row(title: str, seconds: float, count: int, unit: str) -> None:
    """Print a line of the table."""
    print(f"{title:<48}{seconds:>8.2f} s{seconds / count * 1e6:>10.1f} µs/{unit}", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--facts", type=int, default=1_000_000, help="about how many")
    records = simulated_records(parser.parse_args().facts)
    facts = sum(len(record.facts) for record in records)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        filled_s = duration_s(lambda: fill(path, records, durable=False))
        size_mb = path.stat().st_size / 1e6
        print(f"{facts:,} facts in {len(records):,} records, {size_mb:,.0f} MB\n")
        payloads = [encode_facts(record.facts) for record in records]
        row("encode", duration_s(lambda: [encode_facts(r.facts) for r in records]), facts, "fact")
        row("decode", duration_s(lambda: [decode_facts(payload) for payload in payloads]), facts, "fact")
        few = records[:DURABLE]
        durable_s = duration_s(lambda: fill(Path(folder, "durable.db"), few, durable=True))
        row("append, durable: each record synced", durable_s, len(few), "record")
        row("append, not durable: a simulation's", filled_s, len(records), "record")
        row("recover from the beginning", duration_s(lambda: recover(path)), facts, "fact")
        seq = last_seq(path)
        row("write a snapshot", add_snapshot(path, int(seq * SNAPSHOT_AT)), 1, "snapshot")
        row(f"recover from a snapshot at {SNAPSHOT_AT:.0%}", duration_s(lambda: recover(path)), facts, "fact")
    return 0


def last_seq(path: Path) -> int:
    """Return the number of the last record."""
    with SqliteJournal(path, read_only=True) as journal:
        return journal.last_seq


if __name__ == "__main__":
    sys.exit(main())
