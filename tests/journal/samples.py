"""Sample records, and helpers to write and read them."""

from __future__ import annotations

from pathlib import Path

from scheduler.core.facts import Fact, JobMoved, JobSubmitted
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobSpec, Move

Records = list[tuple[float, list[Fact]]]


def numbered(count: int, size_bytes: int = 0) -> Records:
    """Return this many records of one or two facts: job n is submitted at n/2 s, and every third job starts."""
    records: Records = []
    for n in range(1, count + 1):
        facts: list[Fact] = [JobSubmitted(job=str(n), spec=JobSpec(name=f"{n}".ljust(size_bytes, ".")))]
        if n % 3 == 0:
            facts.append(JobMoved(job=str(n), move=Move.START, why="it was given GPUs"))
        records.append((n / 2, facts))
    return records


def write(path: Path, records: Records, *, durable: bool = False) -> SqliteJournal:
    """Write these records to a journal, and return it open."""
    journal = SqliteJournal(path, durable=durable)
    for now_s, facts in records:
        journal.append(now_s, facts)
    return journal


def sound_records(journal: SqliteJournal) -> Records:
    """Return the times and facts of a journal's undamaged records."""
    return [(record.now_s, record.facts) for record in journal.records()]
