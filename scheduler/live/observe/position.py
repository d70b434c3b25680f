"""A position in the journal, up to which a file that is made from the journal is complete."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.journal.record import Journal, Record


class Position(NamedTuple):
    """The last record that a file covers: its number, and its time to recognise the journal."""

    seq: int
    now_s: float

    def is_in(self, journal: Journal) -> bool:
        """Whether the journal has this record, as far as it has kept its records."""
        if self.seq > journal.last_seq:
            return False
        item = next(iter(journal.scan(self.seq - 1)), None)
        return not isinstance(item, Record) or item.seq > self.seq or item.now_s == self.now_s
