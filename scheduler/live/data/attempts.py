"""Where the attempts of jobs ran: what is needed to find their logs, long after the journal has forgotten their leases.

A small table of its own, filled from the facts as they become durable. It is a convenience and no truth: whatever
happens to it, no job is scheduled otherwise, and a table that cannot be written costs old logs their address.
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

ROWS_MAX = 1_000_000
LOST = "`gavel logs` does not find attempts that ended before now"
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
    """The table. Give `listen` to the Feed."""

    def __init__(self, path: Path | None = None, rows_max: int = ROWS_MAX) -> None:
        """With `path` None the table is in memory. A damaged file is set aside, and `warning` says so."""
        self._rows_max, self._since_trim = rows_max, 0
        self._db, self.warning = open_private(path, _SCHEMA, lost=LOST)

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Note the leases that were granted."""
        granted = [
            lease for fact in facts if isinstance(fact, RoundPlanned | GpusFilled) for lease in fact.granted
        ]
        if granted:
            self.note(granted)

    def note(self, leases: Iterable[Lease]) -> None:
        """Note these; also those of the recovered state, of which the last may be missing after a power failure."""
        rows = [(one.job, one.attempt, one.id, "\n".join(nodes_of(one.gpus))) for one in leases]
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?)", rows)
                self._since_trim += len(rows)
                if self._since_trim >= min(_TRIM_EVERY, self._rows_max):
                    self._since_trim = 0
                    self._db.execute(
                        "DELETE FROM attempt WHERE rowid <= (SELECT max(rowid) FROM attempt) - ?",
                        (self._rows_max,),
                    )
        except sqlite3.Error as error:
            log.error("where jobs run could not be noted, so that their logs may not be found: %s", error)

    def of(self, job: str) -> list[Attempt]:
        """The attempts of a job, oldest first."""
        try:
            rows = self._db.execute(
                "SELECT attempt, lease, nodes FROM attempt WHERE job = ? ORDER BY attempt", (job,)
            ).fetchall()
        except sqlite3.Error as error:
            log.error("where job %(job)s ran cannot be read: %(error)s", {"job": job, "error": error})
            return []
        return [Attempt(number, lease, tuple(nodes.split("\n"))) for number, lease, nodes in rows]
