"""Facts to fill journals with. They mean something, but only to themselves."""

from __future__ import annotations

from pathlib import Path

from scheduler.core.facts import Fact, JobMoved, JobSubmitted
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobSpec, Move

Told = list[tuple[float, list[Fact]]]


def told(count: int, size_bytes: int = 0) -> Told:
    """That many records of one or two facts: job n was submitted at n/2 s, and every third one started."""
    records: Told = []
    for n in range(1, count + 1):
        facts: list[Fact] = [JobSubmitted(job=str(n), spec=JobSpec(name=f"{n}".ljust(size_bytes, ".")))]
        if n % 3 == 0:
            facts.append(JobMoved(job=str(n), move=Move.START, why="it was given GPUs"))
        records.append((n / 2, facts))
    return records


def write(path: Path, records: Told, *, durable: bool = False) -> SqliteJournal:
    """A journal of these records, still open."""
    journal = SqliteJournal(path, durable=durable)
    for now_s, facts in records:
        journal.append(now_s, facts)
    return journal


def held(journal: SqliteJournal) -> Told:
    """What a journal's sound records hold."""
    return [(record.now_s, record.facts) for record in journal.records()]
