"""Journals that people name: opened for reading, or refused in words about what the file is and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel.cli import Fault
from gavel.cli.outputs import say
from gavel.cli.wording import printable
from scheduler.journal.errors import JournalError, NotAJournal
from scheduler.journal.record import Damage
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
    lost = [found for found in journal.scan() if isinstance(found, Damage)]
    for damage in lost[:PLACES_SHOWN]:
        say(f"note: {name}: records {damage.first} to {damage.last} are lost: {printable(damage.why)}")
    if len(lost) > PLACES_SHOWN:
        say(f"note: {name}: and {len(lost) - PLACES_SHOWN} more such places")


def _check_file(path: str, name: str) -> None:
    """What need not be opened to be refused."""
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
