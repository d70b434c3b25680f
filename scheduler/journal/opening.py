"""Open a journal's file: check it first and, if necessary, repair it without losing readable content."""

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
from scheduler.journal.lock import block_opening, lock_path
from scheduler.journal.repair.mend import finish_mending, mend, sync_folder, with_ending


class Opened(NamedTuple):
    """A connection to a sound file."""

    db: sqlite3.Connection
    last_seq: int
    # Why the file had to be repaired; empty if it was sound.
    repair_reason: str


def refuse_special(path: Path) -> None:
    """Raise NotAJournal for a device, a pipe or a directory, because reading a device or a pipe may never end."""
    for file in (path, with_ending(path, "-wal"), with_ending(path, "-wal.kept"), lock_path(path)):
        if file.exists() and not file.is_file():
            raise NotAJournal(f"{file} is not a regular file; choose another journal, or move it away")


def open_database(path: Path, last_durable: int, *, durable: bool, strict: bool, name: Path) -> Opened:
    """Connect to a file whose lock the caller holds. Repair a damaged file, or raise an error if `strict`.

    `last_durable` is the number of the last record known to be durable. `name` is the path that error
    messages show, also if `path` is a copy.
    """
    finish_mending(path)
    if last_durable and not path.exists():
        raise NotAJournal(
            f"{name} has disappeared, and {last_durable} records had been written to it; put it back, "
            f"or delete {name.name}.lock to start a new journal"
        )
    try:
        return Opened(*_connect(path, last_durable, durable, name), "")
    except layout.Unsound as error:
        why = str(error)
    if strict:
        raise DamagedJournal(f"{name} is damaged: {why}; without 'strict' it is repaired")
    if not mend(path, last_durable, why):
        raise NotAJournal(f"{name} is not a journal: {why}; choose another file")
    try:
        return Opened(*_connect(path, 0, durable, name), why)
    except layout.Unsound as error:
        raise JournalError(f"{name} could not be repaired: {error}") from None


def _connect(path: Path, last_durable: int, durable: bool, name: Path) -> tuple[sqlite3.Connection, int]:
    """Return a connection and the number of the last record. Leave unsound files unchanged, and raise Unsound."""
    kept_log = _keep_log(path)
    db = None
    try:
        if last_durable and path.stat().st_size == 0:
            raise layout.Unsound("it is empty")
        db = layout.connect(path, durable=durable)
        layout.check_structure(db)
        last = _last_seq(db)
        if last < last_durable:
            raise layout.Unsound(f"it ends at record {last}, but record {last_durable} had been written")
    except (layout.Unsound, NewerJournal, sqlite3.Error) as error:
        if db is not None:
            db.close()
        if kept_log is not None:
            os.replace(kept_log, with_ending(path, "-wal"))
        if isinstance(error, NewerJournal):
            raise NewerJournal(f"{name} {error}") from None
        if isinstance(error, sqlite3.Error):
            if not layout.is_damage(error):
                raise layout.cannot_open(name, error) from None
            raise layout.Unsound(str(error)) from None
        raise
    if kept_log is not None:
        kept_log.unlink()
        # Sync the deletion before the first append. If the kept log came back after a crash, `_keep_log` would replace
        # the log with the new records by it.
        sync_folder(path)
    return db, last


def _keep_log(path: Path) -> Path | None:
    """Copy the write-ahead log that a crash left behind, and return the copy's path; None if there is no log.

    When SQLite closes the file, it deletes the log, even if it could not read all records in the log.
    """
    log, kept, copy = (with_ending(path, ending) for ending in ("-wal", "-wal.kept", "-wal.copy"))
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
    """Copy a journal that no process has open, so that it can be read or repaired without changing the original."""
    if not path.exists():
        raise NotAJournal(f"there is no journal {path}")
    with block_opening(path), TemporaryDirectory(prefix="journal-") as folder:
        copy = Path(folder, path.name)
        for ending in ("", "-wal", "-wal.kept", ".mended", ".lock"):
            if with_ending(path, ending).exists():
                shutil.copyfile(with_ending(path, ending), with_ending(copy, ending))
        yield copy
