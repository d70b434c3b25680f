"""Open a journal's file: check it before it is trusted, and repair it if necessary without losing anything."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from scheduler.journal import layout
from scheduler.journal.errors import DamagedJournal, JournalError, NewerJournal, NotAJournal
from scheduler.journal.lock import hands_off, lock_path
from scheduler.journal.repair.mend import beside, finish_mending, mend, sync_folder


class Opened(NamedTuple):
    """A connection to a sound file."""

    db: sqlite3.Connection
    last_seq: int
    # Why it had to be repaired. Empty: it did not.
    mended: str


def refuse_special(path: Path) -> None:
    """Raise NotAJournal for a device, a pipe or a directory: reading one may never end."""
    for file in (path, beside(path, "-wal"), beside(path, "-wal.kept"), lock_path(path)):
        if file.exists() and not file.is_file():
            raise NotAJournal(f"{file} is not a regular file; choose another journal, or move it away")


def open_database(path: Path, known: int, *, durable: bool, strict: bool, name: Path) -> Opened:
    """Connect to a file whose lock we hold. Errors call it `name`; `known` is the last record known to be durable."""
    finish_mending(path)
    if known and not path.exists():
        raise NotAJournal(
            f"{name} has disappeared, and {known} records had been written to it; put it back, "
            f"or delete {name.name}.lock to start a new journal"
        )
    try:
        return Opened(*_connect(path, known, durable, name), "")
    except layout.Unsound as error:
        why = str(error)
    if strict:
        raise DamagedJournal(f"{name} is damaged: {why}; without 'strict' it is repaired")
    if not mend(path, known, why):
        raise NotAJournal(f"{name} is not a journal: {why}; choose another file")
    try:
        return Opened(*_connect(path, 0, durable, name), why)
    except layout.Unsound as error:
        raise JournalError(f"{name} could not be repaired: {error}") from None


def _connect(path: Path, known: int, durable: bool, name: Path) -> tuple[sqlite3.Connection, int]:
    """Return a connection and the number of the last record; raise Unsound, and leave the files as they were."""
    log = _keep_log(path)
    db = None
    try:
        if known and path.stat().st_size == 0:
            raise layout.Unsound("it is empty")
        db = layout.connect(path, durable=durable)
        layout.check_structure(db)
        last = _last_seq(db)
        if last < known:
            raise layout.Unsound(f"it ends at record {last}, but record {known} had been written")
    except (layout.Unsound, NewerJournal, sqlite3.Error) as error:
        if db is not None:
            db.close()
        if log is not None:
            os.replace(log, beside(path, "-wal"))
        if isinstance(error, NewerJournal):
            raise NewerJournal(f"{name} {error}") from None
        if isinstance(error, sqlite3.Error):
            if not layout.is_damage(error):
                raise layout.cannot_open(name, error) from None
            raise layout.Unsound(str(error)) from None
        raise
    if log is not None:
        log.unlink()
        # Before the first append: a log that came back would hide what was appended.
        sync_folder(path)
    return db, last


def _keep_log(path: Path) -> Path | None:
    """Copy the log that a crash left behind: SQLite deletes it on closing, even what it could not read."""
    log, kept, copy = (beside(path, ending) for ending in ("-wal", "-wal.kept", "-wal.copy"))
    if kept.exists():
        os.replace(kept, log)
    if not log.exists():
        return None
    shutil.copyfile(log, copy)
    os.replace(copy, kept)
    return kept


def _last_seq(db: sqlite3.Connection) -> int:
    tops = [
        db.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]  # noqa: S608
        for column, table in (("seq", "records"), ("seq", "snapshots"), ("last_seq", "quarantine"))
    ]
    compacted = int(layout.get_meta(db).get("compacted", "0"))
    return max([compacted, *(top for top in tops if isinstance(top, int))])


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Copy a journal that no process has open, so that it can be read, and repaired, without changing the original."""
    if not path.exists():
        raise NotAJournal(f"there is no journal {path}")
    with hands_off(path), TemporaryDirectory(prefix="journal-") as folder:
        copy = Path(folder, path.name)
        for ending in ("", "-wal", "-wal.kept", ".mended", ".lock"):
            if beside(path, ending).exists():
                shutil.copyfile(beside(path, ending), beside(copy, ending))
        yield copy
