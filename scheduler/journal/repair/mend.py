"""Build a new database from a damaged database, and keep a complete copy of the damaged one.

If a process dies between any two steps, nothing is lost and the next process continues. The files, by their endings:

    .mending   the new database while it is filled; a file that an earlier attempt left is deleted first
    .mended    the new database once it is complete: this process or the next one replaces the old one by it
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


def mend(path: Path, last_durable: int, why: str) -> bool:
    """Replace a damaged file by a sound journal; return False if the file contains no part of a journal.

    No process may have the file open. `last_durable` is the number of the last record known to be durable.
    """
    salvaged = salvage(path, with_ending(path, "-wal"))
    if salvaged.is_empty and not last_durable:
        return False
    new = with_ending(path, ".mending")
    _remove(new)
    _remove(with_ending(new, "-wal"))
    db = layout.connect(new, durable=True)
    try:
        _fill(db, salvaged, last_durable, why)
    finally:
        db.close()
    os.replace(new, with_ending(path, ".mended"))
    sync_folder(path)
    finish_mending(path)
    return True


def finish_mending(path: Path) -> None:
    """If there is a complete new database, replace the old one by it."""
    new = with_ending(path, ".mended")
    if not new.exists():
        return
    old = next(name for n in count(1) if not (name := with_ending(path, f".damaged-{n}")).exists())
    log = with_ending(path, "-wal")
    # Copy the log first. If a crash came between linking the database and copying its log, the next start would choose
    # another name, and the database that was linked would have no log.
    if log.exists():
        shutil.copyfile(log, with_ending(old, "-wal"))
    if path.exists():
        os.link(path, old)
    sync_folder(path)
    # If the log of the old database stayed, SQLite would apply it to the new database.
    _remove(log)
    sync_folder(path)
    os.replace(new, path)
    sync_folder(path)


def _fill(db: sqlite3.Connection, salvaged: Salvaged, last_durable: int, why: str) -> None:
    """Write salvaged rows to a new database, with a row in `quarantine` for each hole between them."""
    compacted = int(salvaged.meta.get("compacted", "0"))
    # Records that compaction deleted may still be in free pages.
    records = [row for seq, row in sorted(salvaged.records.items()) if seq > compacted]
    last = max((last_durable, compacted, *salvaged.records, *salvaged.snapshots))
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


def with_ending(path: Path, ending: str) -> Path:
    """Return this path with an ending added to its file name."""
    return path.with_name(path.name + ending)


def sync_folder(path: Path) -> None:
    """Make new names, changed names and deletions in the folder of this file durable."""
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
