"""The items of a journal (records, snapshots, and Damage in place of lost ones), and the interface of journals.

`scan` reads a journal in order: every item is a `Record`, or a `Damage` in place of one or more lost records.
`records` and `read` leave Damage out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error as StructError
from typing import NamedTuple, Protocol

from scheduler.core.facts import Fact
from scheduler.journal.codec import record_crc
from scheduler.journal.errors import Damage


class Record(NamedTuple):
    """The facts of one batch. A journal has either the whole record or no part of it."""

    seq: int
    now_s: float
    facts: list[Fact]


class Row(NamedTuple):
    """The stored form of a record."""

    seq: int
    now_s: float
    version: int
    payload: bytes
    crc: int

    @property
    def is_sound(self) -> bool:
        """Whether the row is unchanged since it was written. A damaged column may hold a value of any type."""
        try:
            return record_crc(self.seq, self.now_s, self.version, self.payload) == self.crc
        except (TypeError, ValueError, OverflowError, StructError):
            return False


class Snapshot(NamedTuple):
    """The encoded state after record `seq`."""

    seq: int
    payload: bytes


class Journal(Protocol):
    """The methods of a journal that recovery uses; `scheduler.drive` uses only some of them."""

    @property
    def last_seq(self) -> int:
        """The number of the last record; 0 if there is none."""
        ...

    @property
    def identity(self) -> str:
        """A text that no other journal has, but for copies; empty: unknown."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether the journal was opened for reading only."""
        ...

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Append one atomic record. A durable journal has synced it to disk on return."""
        ...

    def read(self) -> Iterator[tuple[float, Fact]]:
        """Yield all facts with their times, oldest first."""
        ...

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield the records after record `after`, in order, with Damage in place of lost ones."""
        ...

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Write a snapshot of the state after record `seq`."""
        ...

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Yield the snapshots, newest first, with Damage in place of unreadable ones."""
        ...

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Move damaged records and snapshots to the quarantine."""
        ...
