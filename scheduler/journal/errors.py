"""What can be wrong with a journal.

JournalError
├── NotAJournal          there is a file, and it is something else; or a journal that has gone missing
├── NewerJournal         written by a later release than this one
├── JournalBusy          another process has it open
├── DamagedJournal       damage, where the caller asked to be stopped by it; `damage` says which
├── CannotReplay         a fact that does not apply, though nothing is lost before it: a bug
├── Unwritable           a fact that the format cannot hold; nothing was written
└── AppendFailed         the facts are not on disk, so nothing may follow from them
    └── DiskFull         for want of space
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from scheduler.model.errors import SchedulerError


class JournalError(SchedulerError):
    """Anything about a journal. The message is one line, and says what to do."""


class NotAJournal(JournalError):
    """The file is something else, or is not there though it was."""


class NewerJournal(JournalError):
    """A later release wrote this."""


class JournalBusy(JournalError):
    """Another process has it open."""


class DamagedJournal(JournalError):
    """There is damage, and the caller asked to be stopped by it."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage


class CannotReplay(JournalError):
    """A fact does not apply to the state that all facts before it add up to."""


class Unwritable(JournalError):
    """A fact that cannot be written down, such as one that holds an infinity."""


class AppendFailed(JournalError):
    """What was to be written is not on disk. The process has to end; the next one starts from what is."""


class DiskFull(AppendFailed):
    """There is no room left."""


# Times between these, the years 2001 and 5138, are told as dates.
MIN_DATE_S, MAX_DATE_S = 1e9, 1e11


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
