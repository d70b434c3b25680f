"""What comes out of a journal: records, snapshots, and damage in their place. And what a journal can do.

A journal is read by `scan`: everything after a number, in order, each a `Record` or a `Damage` that stands for one
or several records. `records` and `read` are the same without the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import error as StructError
from typing import NamedTuple, Protocol

from scheduler.core.facts import Fact
from scheduler.journal.codec import record_crc

# Times between these, the years 2001 and 5138, are told as dates.
MIN_DATE_S, MAX_DATE_S = 1e9, 1e11


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


@dataclass(frozen=True, slots=True)
class Damage:
    """Records that are lost, `first` to `last`, and how that was noticed. Or one snapshot: first == last."""

    first: int
    last: int
    why: str
    part: str = "record"
    payload: bytes | None = None  # what there is of it
    known: bool = False  # found earlier, and put aside
    after_s: float | None = None  # scheduler time of the last sound record before
    before_s: float | None = None  # and of the first sound one after; None: there is none

    @property
    def lost(self) -> int:
        """How many records."""
        return self.last - self.first + 1 if self.part == "record" else 0

    def __str__(self) -> str:
        one = self.first == self.last
        which = f"{self.part} {self.first}" if one else f"{self.part}s {self.first} to {self.last}"
        times = [
            f"{word} {_moment(time_s)}"
            for word, time_s in (("after", self.after_s), ("before", self.before_s))
            if time_s is not None
        ]
        when = f" (written {' and '.join(times)})" if times else ""
        return f"{which} {'is' if one else 'are'} lost{when}: {self.why}"


def _moment(time_s: float) -> str:
    """A date, where times are seconds since 1970; simulations count from 0."""
    if not MIN_DATE_S <= time_s <= MAX_DATE_S:
        return f"{time_s:g} s"
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
