"""The SQLite files beside the journal: readable by their owner alone, and usually checked when they are opened.

- A damaged file that can be rebuilt, or is only a convenience, is renamed to `NAME.damaged-1` (or the next free
  number) and an empty file takes its place. A warning names the loss, in the log and in `gavel status`.
- A damaged file that nothing can replace (the tokens) is left alone, and `CannotOpen` names the remedy.
"""

from __future__ import annotations

import logging
import sqlite3
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from scheduler.journal.repair.mend import with_ending

log = logging.getLogger(__name__)

# SQLITE_ERROR: another program has made tables with our names. SQLITE_IOERR is absent, because the disk may recover.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class CannotOpen(Exception):
    """A private database cannot be used. The message names the file, the reason and the remedy."""


class Opened(NamedTuple):
    """A connection to a sound database. Any thread may use it, one at a time; transactions are explicit."""

    db: sqlite3.Connection
    # Names the file that was replaced, and what is lost; empty if the file was sound.
    warning: str


def open_private(
    path: Path | None,
    schema: str,
    *,
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
    loss: str = "",
    remedy: str = "",
    check: bool = True,
) -> Opened:
    """Open the database at `path`, or create it. If `path` is None, the database is in memory.

    `check`: read all of the file, so that no damage goes unnoticed; otherwise, only that of its first page is noticed.

    `loss` describes the loss when an empty file replaces a damaged one. If `loss` is empty, a damaged file is not
    replaced, and the error ends with `remedy`.
    """
    try:
        return Opened(_connect(path, schema, synchronous, check), "")
    except sqlite3.Error as error:
        if path is None or error.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise CannotOpen(f"{path} cannot be opened: {error}") from None
        if not loss:
            raise CannotOpen(f"{path} is damaged ({error}); {remedy}") from None
        new_path = _set_aside(path)
        warning = f"{path.name} was damaged ({error}) and was renamed to {new_path.name}: {loss}"
    log.error("%(warning)s", {"warning": warning})
    try:
        return Opened(_connect(path, schema, synchronous, check), warning)
    except sqlite3.Error as error:
        raise CannotOpen(f"{path} cannot be created: {error}") from None


def _connect(path: Path | None, schema: str, synchronous: str, check: bool) -> sqlite3.Connection:
    if path is not None:
        if path.exists() and not path.is_file():
            raise CannotOpen(f"{path} is not a regular file; move it away")
        path.touch(mode=0o600)
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        verdict = str(db.execute("PRAGMA quick_check(1)").fetchone()[0]) if check else "ok"
        if verdict != "ok":
            damage = sqlite3.DatabaseError(verdict.splitlines()[-1])
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
        db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


def _set_aside(path: Path) -> Path:
    """Rename the file and its write-ahead log, and return the new name."""
    new_path = next(name for n in count(1) if not (name := with_ending(path, f".damaged-{n}")).exists())
    # Rename the log first: after a crash in between, SQLite must not find this log beside a new file.
    for ending in ("-wal", ""):
        if with_ending(path, ending).exists():
            with_ending(path, ending).rename(with_ending(new_path, ending))
    with_ending(path, "-shm").unlink(missing_ok=True)
    return new_path
