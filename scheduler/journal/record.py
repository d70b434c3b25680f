"""What comes out of a journal: records, snapshots, and damage in their place. And what a journal can do.

A journal is read by `scan`: everything after a number, in order, each a `Record` or a `Damage` that stands for one
or several records. `records` and `read` are the same without the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error as StructError
from typing import NamedTuple, Protocol

from scheduler.core.facts import Fact
from scheduler.journal.codec import record_crc
from scheduler.journal.errors import Damage


class Record(NamedTuple):
    """What one step came to. In a journal it is there as a whole or not at all."""

    seq: int
    now_s: float
    facts: list[Fact]


class Row(NamedTuple):
    """A record as it is kept."""

    seq: int
    now_s: float
    version: int
    payload: bytes
    crc: int

    @property
    def is_sound(self) -> bool:
        """Whether it is what was written. Damaged columns may hold anything."""
        try:
            return record_crc(self.seq, self.now_s, self.version, self.payload) == self.crc
        except (TypeError, ValueError, OverflowError, StructError):
            return False


class Snapshot(NamedTuple):
    """The state after record `seq`, in its own bytes."""

    seq: int
    payload: bytes


class Journal(Protocol):
    """What recovery needs of a journal; `scheduler.drive` asks for less."""

    @property
    def last_seq(self) -> int:
        """The number of the last record; 0 when there is none."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it is only looked at."""
        ...

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """One atomic record; durable on return, if this journal promises that."""
        ...

    def read(self) -> Iterator[tuple[float, Fact]]:
        """All facts, oldest first."""
        ...

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Everything after record `after`, in order."""
        ...

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Keep the state after record `seq`."""
        ...

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Snapshots, newest first."""
        ...

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Move what is damaged to the quarantine."""
        ...
