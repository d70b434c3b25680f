"""Journals that people name: opened for reading, or refused in words about what the file is and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import say
from gavel.cli.io.wording import printable
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import AppendFailed, Damage, JournalError, NotAJournal
from scheduler.journal.record import Record, Snapshot
from scheduler.journal.store import SqliteJournal

SQLITE = b"SQLite format 3\0"  # how the file of a journal begins
PLACES_SHOWN = 5


@contextmanager
def opened(path: str) -> Iterator[SqliteJournal]:
    """A journal to read from, itself untouched; once it is read, what of it is lost is said."""
    name = printable(path)
    _check_file(path, name)
    try:
        with SqliteJournal(path, read_only=True) as journal:
            yield journal
            say_damage(journal, name)
    except NotAJournal:
        raise Fault(f"{name}: {_what_it_is(path)}") from None
    except JournalError as error:
        raise Fault(
            f"{name}: {printable(str(error)).removeprefix(f'{name} ').removeprefix(f'{name}: ')}"
        ) from None
    except OSError as error:
        raise Fault(f"{name}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def nothing_in(journal: SqliteJournal, path: str, what: str) -> Fault:
    """The refusal of a journal without jobs or nodes, which is no wonder when parts of it are lost."""
    if journal.mended or any(isinstance(found, Damage) for found in journal.scan()):
        return Fault(
            f"{printable(path)}: is cut off or damaged, and what is left holds no {what}; take a backup"
        )
    return Fault(f"{printable(path)}: holds no {what}")


def say_damage(journal: SqliteJournal, name: str) -> None:
    """What of a journal is lost, if anything: figures made of the rest are not the whole truth."""
    if journal.mended:
        say(f"note: {name}: is cut off or damaged ({printable(journal.mended)}); this is what is left of it")
    away = compacted(journal)
    lost = [found for found in journal.scan() if isinstance(found, Damage) and found.last > away]
    for damage in lost[:PLACES_SHOWN]:
        say(f"note: {name}: records {damage.first} to {damage.last} are lost: {printable(damage.why)}")
    if len(lost) > PLACES_SHOWN:
        say(f"note: {name}: and {len(lost) - PLACES_SHOWN} more such places")


def compacted(journal: SqliteJournal) -> int:
    """How many records were put into a snapshot and deleted: nothing of them is lost but how it came about."""
    return int(journal.meta.get("compacted", "0"))


class Until:
    """A journal as it was at a moment, for recovery to read; nothing is ever written."""

    read_only = True

    def __init__(self, journal: SqliteJournal, at_s: float) -> None:
        self.journal, self.at_s = journal, at_s
        self.seen_to_its_end = False  # the moment is not before the last record
        self.has_beginning = not compacted(journal)  # or a snapshot that stands for it

    @property
    def last_seq(self) -> int:
        """Of the whole journal: records that are not there yet are no damage."""
        return self.journal.last_seq

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """The records up to the moment."""
        for found in self.journal.scan(after):
            if isinstance(found, Record) and found.now_s > self.at_s:
                return
            yield found
        self.seen_to_its_end = True

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Those of states that were before the moment."""
        for found in self.journal.snapshots():
            if isinstance(found, Snapshot):
                with suppress(Exception):  # recovery says what is wrong with one that cannot be restored
                    if SchedulerState.restore(found.payload).now_s > self.at_s:
                        continue
                self.has_beginning = True
            yield found

    def read(self) -> Iterator[tuple[float, Fact]]:
        """The facts up to the moment."""
        return ((r.now_s, fact) for r in self.scan() if isinstance(r, Record) for fact in r.facts)

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Never."""
        raise AppendFailed("a journal as it was is only read")

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Never."""
        raise AppendFailed("a journal as it was is only read")

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Never."""
        raise AppendFailed("a journal as it was is only read")


def _check_file(path: str, name: str) -> None:
    """What need not be opened to be refused."""
    if not path:
        raise Fault("the name of the journal is empty; give a file")
    place = Path(path)
    try:
        if place.is_dir():
            raise Fault(f"{name}: is a directory; name the journal's file in it")
        if not place.is_file():
            raise Fault(f"{name}: there is no such journal")
        if place.stat().st_size == 0 and not place.with_name(place.name + "-wal").exists():
            raise Fault(
                f"{name}: is an empty file, no journal; was it ever written? Give another, or a backup"
            )
    except (OSError, ValueError) as error:
        raise Fault(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _what_it_is(path: str) -> str:
    with open(path, "rb") as file:
        begins_like_one = file.read(len(SQLITE)) == SQLITE
        size_bytes = file.seek(0, 2)
    if begins_like_one:
        return (
            f"was cut off after {size_bytes:,} bytes, and nothing of a journal is left in it; take a backup"
        )
    return "is not a journal; give a file that `gavel simulate --journal` or a scheduler has written"
