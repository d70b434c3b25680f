"""Open a journal that the user names, or refuse it with a description of the file and advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.outputs import say
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import Damage, JournalError, NotAJournal
from scheduler.journal.record import Record, Snapshot
from scheduler.journal.store import SqliteJournal

# The first bytes of a journal.
SQLITE = b"SQLite format 3\0"
PLACES_SHOWN = 5


@contextmanager
def open_journal(path: str) -> Iterator[SqliteJournal]:
    """Open a journal for reading; afterwards, print which records are lost."""
    unreadable = f"{path}: cannot be read"
    with refusing(OSError, ValueError, subject=unreadable):
        _check_file(path)
    with refusing(OSError, subject=unreadable):
        try:
            with SqliteJournal(path, read_only=True) as journal:
                yield journal
                report_damage(journal, path)
        except NotAJournal:
            raise Fault(f"{path}: {_description(path)}") from None
        except JournalError as error:
            problem = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
            raise Fault(f"{path}: {problem}") from None


def empty_journal_fault(journal: SqliteJournal, path: str, things: str) -> Fault:
    """Return the fault of a journal without jobs or nodes; it names lost records as the cause, if there are any."""
    if journal.repair_reason or any(isinstance(entry, Damage) for entry in journal.scan()):
        problem = f"is cut off or damaged, and its remains hold no {things}"
        return Fault(f"{path}: {problem}; use a backup")
    return Fault(f"{path}: holds no {things}")


def report_damage(journal: SqliteJournal, name: str) -> None:
    """Print which records of a journal are lost, because its figures cover only the rest."""
    if journal.repair_reason:
        say(f"note: {name}: is cut off or damaged ({journal.repair_reason}); these are its remains")
    compacted_to = compacted_count(journal)
    lost = [entry for entry in journal.scan() if isinstance(entry, Damage) and entry.last > compacted_to]
    for damage in lost[:PLACES_SHOWN]:
        say(f"note: {name}: records {damage.first} to {damage.last} are lost: {damage.why}")
    if len(lost) > PLACES_SHOWN:
        say(f"note: {name}: and {len(lost) - PLACES_SHOWN} more such places")


def compacted_count(journal: SqliteJournal) -> int:
    """Return the number of records that a snapshot has replaced, so that only their history is lost."""
    return int(journal.meta.get("compacted", "0"))


class JournalUntil:
    """A read-only view of a journal for recovery, without the records and snapshots after a moment."""

    def __init__(self, journal: SqliteJournal, at_s: float) -> None:
        self.journal, self.at_s = journal, at_s
        # Whether all records have been read, because none is later than `at_s`.
        self.read_to_its_end = False
        # Whether the state at `at_s` is known from the first record on, or from a snapshot.
        self.has_beginning = not compacted_count(journal)

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield the records up to the given time."""
        for entry in self.journal.scan(after):
            if isinstance(entry, Record) and entry.now_s > self.at_s:
                return
            yield entry
        self.read_to_its_end = True

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Yield the snapshots of states before the given time."""
        for entry in self.journal.snapshots():
            if isinstance(entry, Snapshot):
                # Recovery reports a snapshot that cannot be restored.
                with suppress(Exception):
                    if SchedulerState.restore(entry.payload).now_s > self.at_s:
                        continue
                self.has_beginning = True
            yield entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)


def _check_file(path: str) -> None:
    """Refuse a file that is recognisably wrong without opening it."""
    if not path:
        raise Fault("the name of the journal is empty; give a file")
    file = Path(path)
    if file.is_dir():
        raise Fault(f"{path}: is a directory; name the journal's file in it")
    if not file.is_file():
        raise Fault(f"{path}: there is no such journal")
    if file.stat().st_size == 0 and not file.with_name(file.name + "-wal").exists():
        raise Fault(f"{path}: is an empty file, no journal; was it ever written? Give another, or a backup")


def _description(path: str) -> str:
    """Describe a file that is not a journal, and what to do about it."""
    with open(path, "rb") as file:
        is_sqlite = file.read(len(SQLITE)) == SQLITE
        size_bytes = file.seek(0, 2)
    if is_sqlite:
        cut = f"is cut off after {size_bytes:,} bytes"
        return f"{cut}, and contains no records; use a backup"
    return "is not a journal; give a file that `gavel simulate --journal` or a scheduler has written"
