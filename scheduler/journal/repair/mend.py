"""Build a new database from a damaged one, which is kept beside it, complete.

If a process dies between any two of the steps, nothing is lost and the next process continues:

    .mending   the new database while it is filled; the remains of an earlier attempt are deleted
    .mended    the new database, complete: from here on it will replace the old one
    .damaged-1, .damaged-1-wal    the old database
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
    """Replace a damaged file by a sound journal; return False if nothing of a journal is in it.

    No process may have the file open. `known` is the last record known to be durable.
    """
    salvaged = salvage(path, beside(path, "-wal"))
    if salvaged.is_empty and not known:
        return False
    new = beside(path, ".mending")
    _remove(new)
    _remove(beside(new, "-wal"))
    db = layout.connect(new, durable=True)
    try:
        _fill(db, salvaged, known, why)
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
    # This comes first: once the database has its new name, this step is not repeated.
    if log.exists():
        shutil.copyfile(log, beside(old, "-wal"))
    if path.exists():
        os.link(path, old)
    sync_folder(path)
    # It belongs to the old database, and SQLite would apply it to the new one.
    _remove(log)
    sync_folder(path)
    os.replace(new, path)
    sync_folder(path)


def _fill(db: sqlite3.Connection, salvaged: Salvaged, known: int, why: str) -> None:
    compacted = int(salvaged.meta.get("compacted", "0"))
    # Records that compaction deleted may still be in free pages.
    records = [row for seq, row in sorted(salvaged.records.items()) if seq > compacted]
    last = max((known, compacted, *salvaged.records, *salvaged.snapshots))
    db.execute("BEGIN")
    db.executemany(layout.INSERT_RECORD, records)
    db.executemany(layout.INSERT_SNAPSHOT, sorted(salvaged.snapshots.values()))
    for key, value in sorted(salvaged.meta.items()):
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
    """Return the path of the file whose name has this ending in addition."""
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
