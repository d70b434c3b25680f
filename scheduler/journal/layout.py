"""The SQLite file of a journal: its tables, how it is opened, and the check of its structure.

A process that has a journal open must not open its file again: POSIX drops a process's locks on a file when the process
closes any of its descriptors for that file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from scheduler.journal.codec import meta_crc
from scheduler.journal.errors import AppendFailed, DiskFull, JournalBusy, JournalError, NewerJournal

APPLICATION_ID = 0x4741564C  # "GAVL"
FORMAT = 1
PAGE_SIZE = 4096

TABLES = {
    "records": "seq INTEGER PRIMARY KEY, now_s REAL NOT NULL, version INTEGER NOT NULL, "
    "payload BLOB NOT NULL, crc INTEGER NOT NULL",
    "snapshots": "seq INTEGER PRIMARY KEY, version INTEGER NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL",
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL",
    "quarantine": "id INTEGER PRIMARY KEY, part TEXT NOT NULL, first_seq INTEGER NOT NULL, "
    "last_seq INTEGER NOT NULL, why TEXT NOT NULL, payload BLOB",
}
_SCHEMA = {name: f"CREATE TABLE {name} ({columns})" for name, columns in TABLES.items()}

INSERT_RECORD = "INSERT INTO records VALUES (?, ?, ?, ?, ?)"
INSERT_SNAPSHOT = "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)"
INSERT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
INSERT_QUARANTINE = "INSERT INTO quarantine (part, first_seq, last_seq, why, payload) VALUES (?, ?, ?, ?, ?)"


class Unsound(Exception):
    """The file is not a journal, or is a damaged journal. The message is the reason, without the name of the file."""


def connect(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Open a connection that excludes all others. Create the tables in a new file; refuse a file that is no journal."""
    size_bytes = path.stat().st_size if path.exists() else 0
    db = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode=rwc",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    # Damaged text may not be UTF-8.
    db.text_factory = bytes
    try:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        # A process that died while it created the file may have left one page without tables.
        is_new = not tables and size_bytes <= PAGE_SIZE
        if not is_new:
            _check_head(db)
        db.execute(f"PRAGMA page_size={PAGE_SIZE}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        if is_new:
            _create(db)
    except BaseException:
        db.close()
        raise
    return db


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN EXCLUSIVE")
    for sql in _SCHEMA.values():
        db.execute(sql)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={FORMAT}")
    put_meta(db, "format", str(FORMAT))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def put_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    """Write a row of `meta`."""
    db.execute(INSERT_META, (key, value, meta_crc(key, value)))


def get_meta(db: sqlite3.Connection) -> dict[str, str]:
    """Return all sound rows of `meta`."""
    values: dict[str, str] = {}
    for key, value, crc in db.execute("SELECT key, value, crc FROM meta ORDER BY key"):
        try:
            key, value = key.decode(), value.decode()
        except (AttributeError, UnicodeDecodeError):
            continue
        if meta_crc(key, value) == crc:
            values[key] = value
    return values


def check_structure(db: sqlite3.Connection) -> None:
    """Raise Unsound unless SQLite can read every page of the file and the file has the tables of a journal."""
    _check_head(db)
    schema = {
        name.decode(errors="replace"): sql.decode(errors="replace")
        for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
        if name is not None and sql is not None
    }
    if schema != _SCHEMA:
        raise Unsound("its tables are not those of a journal")
    stated_format = get_meta(db).get("format")
    if stated_format != str(FORMAT):
        raise Unsound("it does not state its format")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != b"ok":
        raise Unsound(verdict.decode(errors="replace").splitlines()[-1])


def _check_head(db: sqlite3.Connection) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise Unsound("it is not marked as a journal")
    if version == FORMAT:
        return
    try:
        stated_format = get_meta(db).get("format")
    except sqlite3.Error:
        stated_format = None
    if stated_format is not None and stated_format == str(version):
        raise NewerJournal(
            f"has format {version}; this release reads up to {FORMAT}. Use the release that wrote it"
        )
    raise Unsound(f"it claims to have format {version}")


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error in opening or reading is due to the file's content, not to access to the file."""
    return _code(error) in _DAMAGE


def cannot_open(path: Path, error: sqlite3.Error) -> JournalError:
    """Return the error to raise when a file cannot be opened."""
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return JournalBusy(f"{path} is in use by another process; stop that one first")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return JournalError(f"{path} cannot be opened; check that this user may write it and its folder")
        case sqlite3.SQLITE_FULL:
            return DiskFull(f"{path} cannot be opened: the disk is full; free some space, then start again")
    return JournalError(f"{path} cannot be opened: {error}")


def cannot_write(path: Path, error: sqlite3.Error) -> AppendFailed:
    """Return the error to raise when a write failed."""
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return DiskFull(
                f"{path}: the disk is full; free some space, then start again; everything acknowledged is saved"
            )
        case sqlite3.SQLITE_READONLY:
            return AppendFailed(f"{path} has become read-only; make it writable, then start again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return AppendFailed(f"{path} is damaged ({error}); start again to have it repaired")
    return AppendFailed(f"{path} could not be written ({error}); start again once the disk works")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
