"""Errors of journals.

JournalError
├── NotAJournal          the file is not a journal, or the journal has disappeared
├── NewerJournal         a later release wrote it
├── JournalBusy          another process has it open
├── DamagedJournal       the journal is damaged, and the caller asked for no repair (`strict`)
├── CannotReplay         a fact does not apply, although no earlier fact is lost: a bug
├── Unwritable           the format cannot hold a fact; nothing was written
└── AppendFailed         the facts are not on disk, so none of their effects may be carried out
    └── DiskFull         because the disk is full
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from scheduler.model.errors import SchedulerError


class JournalError(SchedulerError):
    """Base class of the journal's errors. The message is one line and includes what to do."""


class NotAJournal(JournalError):
    """The file is not a journal, or the journal has disappeared."""


class NewerJournal(JournalError):
    """A later release wrote this journal."""


class JournalBusy(JournalError):
    """Another process has the journal open."""


class DamagedJournal(JournalError):
    """The journal is damaged, and the caller asked for no repair. `damage` describes the first loss, if known."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage


class CannotReplay(JournalError):
    """A fact does not apply to the state before it, although no earlier fact is lost: this is a bug."""


class Unwritable(JournalError):
    """A fact or its time cannot be written: for example, a number is infinite."""


class AppendFailed(JournalError):
    """A write failed. This process must end; the next process starts from the records on disk."""


class DiskFull(AppendFailed):
    """The disk is full."""


# Times in this range, the years 2001 to 5138, are formatted as dates.
MIN_DATE_S, MAX_DATE_S = 1e9, 1e11


@dataclass(frozen=True, slots=True)
class Damage:
    """Lost records, `first` to `last`, or one lost snapshot (first == last), and how the loss was noticed."""

    first: int
    last: int
    why: str
    # What was lost: "record" or "snapshot".
    part: str = "record"
    # What could still be read of the lost record or snapshot, if anything.
    payload: bytes | None = None
    # Whether an earlier start of a scheduler reported the damage and moved it to the quarantine.
    is_quarantined: bool = False
    # The scheduler's time of the last sound record before the damage; None if there is none.
    after_s: float | None = None
    # The scheduler's time of the first sound record after the damage; None if there is none.
    before_s: float | None = None

    @property
    def lost(self) -> int:
        """The number of records lost."""
        return self.last - self.first + 1 if self.part == "record" else 0

    def __str__(self) -> str:
        is_single = self.first == self.last
        which = f"{self.part} {self.first}" if is_single else f"{self.part}s {self.first} to {self.last}"
        times = [
            f"{word} {time_text(time_s)}"
            for word, time_s in (("after", self.after_s), ("before", self.before_s))
            if time_s is not None
        ]
        when = f" (written {' and '.join(times)})" if times else ""
        return f"{which} {'is' if is_single else 'are'} lost{when}: {self.why}"


def time_text(time_s: float) -> str:
    """Format a time as a date if it counts seconds from 1970, otherwise as seconds: simulations begin at 0."""
    if not MIN_DATE_S <= time_s <= MAX_DATE_S:
        return f"{time_s:g} s"
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
