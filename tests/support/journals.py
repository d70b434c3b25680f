"""A journal in memory, and helpers that read journals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from scheduler.core.facts import Fact
from scheduler.journal.codec import HEAD, VERSION, encode_facts
from scheduler.journal.errors import Damage
from scheduler.journal.history import BrokenPromise, History
from scheduler.journal.record import Record, Snapshot
from scheduler.journal.store import SqliteJournal


class MemoryJournal:
    """Records in a list, from which a scheduler recovers like from a file."""

    read_only = False
    identity = ""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._snapshots: list[Snapshot] = []

    @property
    def last_seq(self) -> int:
        """Return the number of the newest record."""
        return len(self._records)

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Keep one record."""
        if facts:
            self._records.append(Record(len(self._records) + 1, now_s, list(facts)))

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield every record after record `after`; memory takes no damage."""
        yield from self._records[after:]

    def records(self, after: int = 0) -> Iterator[Record]:
        """Yield every record after record `after`."""
        yield from self._records[after:]

    def read(self) -> Iterator[tuple[float, Fact]]:
        """Return all facts, oldest first."""
        return ((record.now_s, fact) for record in self._records for fact in record.facts)

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Keep the state after record `seq`."""
        if not 0 < seq <= self.last_seq:
            raise ValueError(f"a snapshot of record {seq}; records so far: {self.last_seq}")
        self._snapshots = [kept for kept in self._snapshots if kept.seq != seq]
        self._snapshots.append(Snapshot(seq, payload))
        self._snapshots.sort()

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Yield snapshots, newest first."""
        yield from reversed(self._snapshots)

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Do nothing: memory takes no damage."""

    def close(self) -> None:
        """Do nothing: there is no file to close."""


def digest(journal: SqliteJournal | MemoryJournal) -> str:
    """Return the SHA-256 of all records in order, as docs/journal-format.md describes it."""
    sum_ = sha256()
    for seq, now_s, facts in journal.records():
        payload = encode_facts(facts)
        sum_.update(HEAD.pack(seq, now_s, VERSION) + len(payload).to_bytes(8, "little") + payload)
    return sum_.hexdigest()


def latest_snapshot(journal: SqliteJournal | MemoryJournal) -> Snapshot | None:
    """Return the newest sound snapshot."""
    return next((snapshot for snapshot in journal.snapshots() if isinstance(snapshot, Snapshot)), None)


def quarantined(journal: SqliteJournal) -> list[Damage]:
    """Return the damage that was put aside so far, oldest first."""
    return [
        Damage(first, last, why.decode(errors="replace"), part.decode(errors="replace"), payload)
        for part, first, last, why, payload in journal._db.execute(
            "SELECT part, first_seq, last_seq, why, payload FROM quarantine ORDER BY id"
        )
    ]


def broken_by(history: History, facts: Iterable[tuple[float, Fact]]) -> list[BrokenPromise]:
    """Feed these facts to the history, and return the promises that they break."""
    for now_s, fact in facts:
        history.check(now_s, fact)
    return history.broken
