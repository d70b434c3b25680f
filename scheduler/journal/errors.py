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

from typing import TYPE_CHECKING

from scheduler.model.errors import SchedulerError

if TYPE_CHECKING:
    from scheduler.journal.record import Damage


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
