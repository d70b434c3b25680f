"""`history.db`: the database of the history, with a table of ended jobs and tables of what the journal reports.

All of it is derived: no decision depends on it, with one exception, which `history_book` names. The ended jobs are
rebuilt from the state. The other tables belong to `timeline`, which rebuilds them from the journal; when their form
changes, they are dropped, so a file of any release can be opened.

Reading all of a large file takes seconds, so it is checked at a start only if damage was noticed before: then a file
`history.db-suspect` stands beside it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from scheduler.journal.repair.mend import with_ending
from scheduler.live.private_database import CannotOpen, open_private

# A file up to this size is checked at each start.
CHECK_BYTES_MAX = 256 * 2**20
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOST = (
    "jobs that the scheduler has forgotten, and leases and rounds older than the journal, are no longer shown"
)
TEMPORARY = (
    "until a start can use it, jobs that the scheduler has forgotten are not shown, no more are forgotten, and the "
    "history is only what the journal still has"
)
log = logging.getLogger(__name__)
_JOBS = """
CREATE TABLE IF NOT EXISTS job (
    id TEXT PRIMARY KEY, array_id TEXT NOT NULL, number INTEGER NOT NULL,
    name TEXT NOT NULL, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL,
    state TEXT NOT NULL, why TEXT NOT NULL, exit_code INTEGER,
    submitted_s REAL NOT NULL, started_s REAL, ended_s REAL NOT NULL, run_s REAL NOT NULL, cost REAL NOT NULL,
    attempts INTEGER NOT NULL, preemptions INTEGER NOT NULL, failures INTEGER NOT NULL,
    worker_types TEXT NOT NULL, nodes TEXT NOT NULL, job TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS job_by_end ON job (ended_s, number);
CREATE INDEX IF NOT EXISTS job_by_user ON job (user, ended_s, number);
CREATE INDEX IF NOT EXISTS job_by_array ON job (array_id) WHERE array_id != '';
CREATE TABLE IF NOT EXISTS journal (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL);
"""
# The form of the tables below, as `PRAGMA user_version`. Raise it with every change of them.
_VERSION = 4
_TABLES = ("lease", "node", "round", "allocation", "position")
# Their columns, but for those of `position`, are the fields of the rows in `past_rows`.
_CREATE = """
CREATE TABLE lease (
    place INTEGER PRIMARY KEY, lease INTEGER NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL,
    round INTEGER NOT NULL, worker_type TEXT NOT NULL, gpus INTEGER NOT NULL, on_gpus TEXT NOT NULL,
    plan TEXT NOT NULL, with_job TEXT NOT NULL, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL,
    granted_ms INTEGER NOT NULL, started_ms INTEGER, ended_ms INTEGER NOT NULL,
    run_ms INTEGER NOT NULL, stepping_ms INTEGER NOT NULL, steps REAL, saved REAL,
    outcome INTEGER NOT NULL, code INTEGER NOT NULL, why TEXT NOT NULL,
    held_ms INTEGER NOT NULL, useful_ms INTEGER NOT NULL, lost_ms INTEGER NOT NULL, idle_ms INTEGER NOT NULL,
    shared_ms INTEGER NOT NULL
);
CREATE INDEX lease_by_job ON lease (job);
CREATE INDEX lease_by_end ON lease (ended_ms);
CREATE TABLE node (
    place INTEGER PRIMARY KEY, node TEXT NOT NULL, at_ms INTEGER NOT NULL, worker_type TEXT NOT NULL,
    gpus INTEGER NOT NULL, drained INTEGER NOT NULL, broken INTEGER NOT NULL, unreachable INTEGER NOT NULL
);
CREATE TABLE round (
    number INTEGER PRIMARY KEY, planned_ms INTEGER NOT NULL, starts_ms INTEGER NOT NULL, ends_ms INTEGER NOT NULL,
    granted INTEGER NOT NULL, renewed INTEGER NOT NULL, ended INTEGER NOT NULL, skipped INTEGER NOT NULL,
    allocation INTEGER NOT NULL
);
CREATE TABLE allocation (
    number INTEGER PRIMARY KEY, adopted_ms INTEGER NOT NULL, solve_ms INTEGER, policy TEXT NOT NULL,
    failed TEXT NOT NULL, optimal INTEGER NOT NULL, shares TEXT NOT NULL
);
CREATE INDEX allocation_by_time ON allocation (adopted_ms);
CREATE TABLE position (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, now_s REAL NOT NULL);
"""


class HistoryFile:
    """The database. Any thread may use it."""

    def __init__(self, path: Path | None) -> None:
        """Open the file; if `path` is None, or the file cannot be used, use memory: the scheduler must start.

        A damaged file is set aside. `warning` reports both.
        """
        # Whether what is written ends with this process.
        self.is_temporary = path is None
        self._suspect = None if path is None else with_ending(path, "-suspect")
        try:
            self._open_or_replace(path)
        except (CannotOpen, OSError, sqlite3.Error) as error:
            if path is None:
                raise
            self.is_temporary, self._suspect = True, None
            self._open(None, check=False)
            problem = error if isinstance(error, CannotOpen) else f"{path} cannot be used: {error}"
            self.warning = f"{problem}; {TEMPORARY}"
            log.error("%(warning)s", {"warning": self.warning})

    def _open_or_replace(self, path: Path | None) -> None:
        try:
            self._open(path, check=self._is_small_or_suspect(path))
        except sqlite3.DatabaseError:
            self._open(path, check=True)

    def _is_small_or_suspect(self, path: Path | None) -> bool:
        if path is None or self._suspect is None or self._suspect.exists():
            return True
        return not path.exists() or path.stat().st_size <= CHECK_BYTES_MAX

    def _open(self, path: Path | None, *, check: bool) -> None:
        self._db, self.warning = open_private(path, _JOBS, loss=LOST, check=check)
        if check and self._suspect is not None:
            self._suspect.unlink(missing_ok=True)
        self._lock = threading.Lock()
        # A second connection for queries that take seconds, so that nothing else waits for them.
        self._reader, self._reading = self._db, self._lock
        if path is not None:
            self._reader = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            self._reading = threading.Lock()
        try:
            (version,) = self.rows("PRAGMA user_version")[0]
            if version != _VERSION:
                self.clear()
        except sqlite3.Error:
            self.close()
            raise

    def clear(self) -> None:
        """Empty the tables that are made from the journal."""
        with self.transaction() as db:
            # Earlier releases had `share`.
            for table in (*_TABLES, "share"):
                db.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _CREATE.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")

    def belongs_to(self, journal: str) -> bool:
        """Whether the file belongs to the journal with this identity, as far as both are known; then remember it."""
        known = self.rows("SELECT identity FROM journal")
        if journal:
            with self.transaction() as db:
                db.execute("INSERT OR REPLACE INTO journal VALUES (1, ?)", (journal,))
        return not journal or not known or known[0][0] == journal

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a query selects."""
        with self._lock, self._noticing_damage():
            return self._db.execute(query, values).fetchall()

    def read_long(self, query: str, values: Any, take: Callable[[Iterable[Any]], None]) -> None:
        """Have `take` read the rows that a query selects, one by one, while others read and write the file."""
        with self._reading, self._noticing_damage(), closing(self._reader.execute(query, values)) as rows:
            take(rows)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction, which is durable when the block ends.

        If it is not `durable`, it becomes so with a later one: a crash may undo it, but only as a whole.
        """
        with self._lock, self._noticing_damage(), self._db:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    @contextmanager
    def _noticing_damage(self) -> Iterator[None]:
        """Have the next start check the file if an error in this block shows that it is damaged."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Errors of the module itself have no code.
            if self._suspect is not None and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                self.warning = (
                    f"history.db is damaged ({error}); the next start checks it, and replaces it if necessary"
                )
                with suppress(OSError):
                    self._suspect.touch(mode=0o600)
            raise

    def close(self) -> None:
        """Close the file. A long query that is running fails."""
        self._reader.interrupt()
        with self._reading:
            self._reader.close()
        with self._lock:
            self._db.close()
