"""The nodes of each attempt of a job, so that logs can be found long after the state has forgotten the lease.

The table is filled from facts as they become durable. Scheduling never reads it: if the file is lost, only the logs of
old attempts can no longer be found.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scheduler.core.facts import Fact, GpusFilled, RoundPlanned
from scheduler.live.private_database import open_private
from scheduler.model.lease import Lease, nodes_of

log = logging.getLogger(__name__)

# How many rows are kept; the oldest are deleted.
ROWS_MAX = 1_000_000
LOST = "`gavel logs` does not find attempts that ended before now"
# How many rows are added between two deletions of the oldest rows.
_TRIM_EVERY = 10_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempt (
    job TEXT NOT NULL, attempt INTEGER NOT NULL, lease TEXT NOT NULL, nodes TEXT NOT NULL,
    PRIMARY KEY (job, attempt)
)
"""


class Attempt(NamedTuple):
    """One attempt of a job: its number, its lease, and the nodes in the order of their ranks."""

    number: int
    lease: str
    nodes: tuple[str, ...]


class Attempts:
    """The table of attempts. The Feed has to call `listen`."""

    def __init__(self, path: Path | None = None, rows_max: int = ROWS_MAX) -> None:
        """Open the file; if `path` is None, use memory. A damaged file is set aside and reported in `warning`."""
        self._rows_max, self._rows_since_trim = rows_max, 0
        self._db, self.warning = open_private(path, _SCHEMA, loss=LOST)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Record the leases that these facts grant."""
        granted = [
            lease for fact in facts if isinstance(fact, RoundPlanned | GpusFilled) for lease in fact.granted
        ]
        if granted:
            self.note(granted)

    def note(self, leases: Iterable[Lease]) -> None:
        """Record leases. At the start, record the recovered leases: a power failure may have lost the last rows."""
        rows = [(lease.job, lease.attempt, lease.id, "\n".join(nodes_of(lease.gpus))) for lease in leases]
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?)", rows)
                self._rows_since_trim += len(rows)
                if self._rows_since_trim >= min(_TRIM_EVERY, self._rows_max):
                    self._rows_since_trim = 0
                    self._db.execute(
                        "DELETE FROM attempt WHERE rowid <= (SELECT max(rowid) FROM attempt) - ?",
                        (self._rows_max,),
                    )
        except sqlite3.Error as error:
            log.error("attempts.db cannot be written, so logs of new attempts may not be found: %s", error)

    def of(self, job: str) -> list[Attempt]:
        """Return the attempts of a job, oldest first."""
        try:
            rows = self._db.execute(
                "SELECT attempt, lease, nodes FROM attempt WHERE job = ? ORDER BY attempt", (job,)
            ).fetchall()
        except sqlite3.Error as error:
            log.error("the attempts of job %(job)s cannot be read: %(error)s", {"job": job, "error": error})
            return []
        return [Attempt(number, lease, tuple(nodes.split("\n"))) for number, lease, nodes in rows]
