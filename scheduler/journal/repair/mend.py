"""A new database out of a damaged one, which stays beside it, complete.

The order of the steps is such that a process that dies between any two of them loses nothing, and the next one goes on:

    .mending   a new database, being filled; whatever is left of an earlier one is thrown away
    .mended    it is complete: from here on there is no way back
    .damaged-1, .damaged-1-wal    what was there before
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from itertools import count
from pathlib import Path

from scheduler.journal import layout
from scheduler.journal.repair.salvage import Salvaged, salvage


def mend(path: Path, known: int, why: str) -> bool:
    """Put a sound journal in the place of this one; False if there is nothing of a journal in it.

    Nobody has the file open, and `known` is the last record that was ever durable, as far as that is known.
    """
    found = salvage(path, beside(path, "-wal"))
    if found.is_empty and not known:
        return False
    new = beside(path, ".mending")
    _remove(new)
    _remove(beside(new, "-wal"))
    db = layout.connect(new, durable=True)
    try:
        _fill(db, found, known, why)
    finally:
        db.close()
    os.replace(new, beside(path, ".mended"))
    sync_folder(path)
    finish_mending(path)
    return True


def finish_mending(path: Path) -> None:
    """Put a complete new database in place, if there is one."""
    new = beside(path, ".mended")
    if not new.exists():
        return
    old = next(name for n in count(1) if not (name := beside(path, f".damaged-{n}")).exists())
    log = beside(path, "-wal")
    if log.exists():  # first: once the database has its new name, this step is not repeated
        shutil.copyfile(log, beside(old, "-wal"))
    if path.exists():
        os.link(path, old)
    sync_folder(path)
    _remove(log)  # it belongs to the old database, and SQLite would write it into the new one
    sync_folder(path)
    os.replace(new, path)
    sync_folder(path)


def _fill(db: sqlite3.Connection, found: Salvaged, known: int, why: str) -> None:
    compacted = int(found.meta.get("compacted", "0"))
    # what compaction deleted may still lie about in free pages
    records = [row for seq, row in sorted(found.records.items()) if seq > compacted]
    last = max((known, compacted, *found.records, *found.snapshots))
    db.execute("BEGIN")
    db.executemany(layout.INSERT_RECORD, records)
    db.executemany(layout.INSERT_SNAPSHOT, sorted(found.snapshots.values()))
    for key, value in sorted(found.meta.items()):
        if key != "format":
            layout.put_meta(db, key, value)
    expected = compacted + 1
    for seq in [row.seq for row in records] + [last + 1]:
        if seq > expected:
            db.execute(
                layout.INSERT_QUARANTINE, ("record", expected, seq - 1, f"the file was damaged: {why}", None)
            )
        expected = seq + 1
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def beside(path: Path, ending: str) -> Path:
    """The file whose name has this ending more."""
    return path.with_name(path.name + ending)


def sync_folder(path: Path) -> None:
    """Make new names in the folder of this file durable."""
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
