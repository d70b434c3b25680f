"""Leases, rounds and shares of the past, taken from durable records and written to `history.db`.

The feed calls `listen` with each record, which only keeps it. Every two seconds, a thread turns the kept records into
rows (`ledger`), and writes them together with the number of the last record, in one transaction. So after a crash the
file lacks the rows of the last records at most, and the next start makes them again from the journal; a row that is
made twice is the same. If the file is missing, damaged or of another release, the start makes everything again that
the journal still has.

Nothing here stops the scheduler: if the file cannot be written, rows are kept in memory for a while, and
`gavel status` shows a warning.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.compaction import SNAPSHOT_FACTS
from scheduler.journal.errors import Damage, time_text
from scheduler.journal.record import Journal, Record, Snapshot
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.ledger import PLACE_BITS, Ledger
from scheduler.live.observe.past_rows import PastAllocation, PastLease, PastNode, PastRound, Row, ms
from scheduler.live.observe.position import Position
from scheduler.live.threads import in_thread

log = logging.getLogger(__name__)

# How many rows are kept in memory while the file cannot be written. Later rows wait in the journal for the next start.
ROWS_MAX = 100_000
# How often, while as many facts arrive as lie between two snapshots, everything written so far is made durable. The
# journal deletes records only after two snapshots, so a power failure takes no rows whose records are gone.
DURABLE_WRITES = 10
# How many rows are written, or deleted, in one transaction.
BATCH = 10_000
FOREIGN = "history.db belonged to another journal, and its leases are no longer shown"
_TABLES: dict[type[Row], str] = {
    PastLease: "lease",
    PastNode: "node",
    PastRound: "round",
    PastAllocation: "allocation",
}
_INSERTS = {
    kind: f"INSERT INTO {table} VALUES ({', '.join('?' * len(kind._fields))}) ON CONFLICT DO NOTHING"  # noqa: S608
    for kind, table in _TABLES.items()
}
_INSERT_POSITION = "INSERT OR REPLACE INTO position VALUES (1, ?, ?)"
# Rounds are few enough to need no index. The allocation that was in force at the time stays, as do the GPUs that each
# node had: their row is then of that time.
_PRUNE = (
    "DELETE FROM lease WHERE place IN (SELECT place FROM lease WHERE ended_ms <= :until LIMIT :most)",
    "DELETE FROM round WHERE number IN (SELECT number FROM round WHERE ends_ms <= :until LIMIT :most)",
    "DELETE FROM allocation WHERE number IN (SELECT number FROM allocation WHERE number < "
    "(SELECT max(number) FROM allocation WHERE adopted_ms <= :until) LIMIT :most)",
    "DELETE FROM node WHERE place IN (SELECT place FROM node AS old WHERE at_ms <= :until AND (gpus = 0 OR EXISTS "
    "(SELECT 1 FROM node WHERE node = old.node AND place > old.place AND at_ms <= :until)) LIMIT :most)",
    "UPDATE node SET at_ms = :until WHERE place IN (SELECT place FROM node WHERE at_ms < :until LIMIT :most)",
)


class Timeline:
    """Writes the tables that are made from the journal. `write` and `prune` have to be called in loops."""

    def __init__(
        self,
        file: HistoryFile,
        journal: Journal,
        state: SchedulerState,
        snapshot_facts: int = SNAPSHOT_FACTS,
    ) -> None:
        """Make the rows that the file lacks. `state` is the state after the last record of the journal.

        `snapshot_facts`: how many facts are between two snapshots of the journal.
        """
        self._file, self._journal = file, journal
        # After how many facts a write is durable.
        self._facts_max = snapshot_facts // DURABLE_WRITES
        # For operators: why rows are missing, and why the file cannot be written now; empty if neither is so.
        self._gap = self._trouble = ""
        # Whether rows are missing, so that the next start has to make them again.
        self._is_behind = False
        try:
            self._gap = _catch_up(file, journal)
        # The scheduler must start without its history, too.
        except Exception as error:
            log.exception("history.db cannot be completed from the journal")
            self._gap = f"history.db lacks leases that ended before this start: {error}"
            self._is_behind = True
        if self._gap:
            log.warning("%(gap)s", {"gap": self._gap})
        self._ledger = Ledger(state)
        # Records of which no rows were made yet; rows that are not written yet; and the last record with rows.
        self._records: list[tuple[int, float, Sequence[Fact]]] = []
        self._rows: list[Row] = []
        self._position: Position | None = None
        # Leases that have ended since `on_ended` was called, which `write` does.
        self._ended: list[PastLease] = []
        self.on_ended: Callable[[Sequence[PastLease]], object] = lambda leases: None
        # How many facts have followed the last durable write.
        self._facts = 0
        self._writing = asyncio.Lock()

    # Writing.

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Keep a record that has just become durable."""
        self._records.append((self._journal.last_seq, now_s, facts))

    async def write(self, *, at_end: bool = False) -> None:
        """Write the rows of all records so far; `at_end`, also that later records made none.

        If the file cannot be written, the rows are kept.
        """
        async with self._writing:
            records, self._records = self._records, []
            if records or self._rows or at_end:
                try:
                    await in_thread(partial(self._take_and_write, records, at_end))
                finally:
                    ended, self._ended = self._ended, []
                    self.on_ended(ended)

    def _take_and_write(self, records: Sequence[tuple[int, float, Sequence[Fact]]], at_end: bool) -> None:
        try:
            for seq, now_s, facts in records:
                rows = self._ledger.take(seq, now_s, facts)
                self._rows += rows
                self._ended += [row for row in rows if type(row) is PastLease]
                self._position = Position(seq, now_s)
                self._facts += len(facts)
        except Exception:
            self._is_behind = True
            raise
        durable = at_end or self._facts >= self._facts_max
        if not (self._rows or durable):
            return
        try:
            add(self._file, self._rows, None if self._is_behind else self._position, durable=durable)
        except sqlite3.Error as error:
            self._trouble = cannot_be_written(error)
            if len(self._rows) > ROWS_MAX:
                self._rows, self._is_behind = [], True
            raise
        self._rows, self._trouble = [], ""
        if durable:
            self._facts = 0

    def next_place(self) -> int:
        """Return a place after the rows of all records so far, and before those of later records."""
        return (self._journal.last_seq + 1) << PLACE_BITS

    async def prune(self, until_s: float) -> None:
        """Delete what is older than this. SQLite reuses the space."""
        for statement in _PRUNE:
            while await in_thread(partial(self._delete, statement, ms(until_s))) == BATCH:
                pass

    def _delete(self, statement: str, until_ms: int) -> int:
        with self._file.transaction() as db:
            return db.execute(statement, {"until": until_ms, "most": BATCH}).rowcount

    def warnings(self) -> Iterator[str]:
        """Yield warnings for operators."""
        if self._trouble:
            yield self._trouble
        if self._gap:
            yield self._gap
        if self._is_behind:
            yield "history.db lacks leases that have ended; the next start adds them from the journal"


def cannot_be_written(error: sqlite3.Error) -> str:
    """Return the warning for operators while the file cannot be written."""
    return f"history.db cannot be written ({error}); trying again"


def add(file: HistoryFile, rows: Sequence[Row], position: Position | None, *, durable: bool = False) -> None:
    """Write rows, and that the file is complete up to this record.

    If it is not `durable`, a power failure may undo it; then the next start makes the rows again.
    """
    with file.transaction(durable=durable) as db:
        for kind, insert in _INSERTS.items():
            db.executemany(insert, [row for row in rows if type(row) is kind])
        if position is not None:
            db.execute(_INSERT_POSITION, position)


# ---------------------------------------------------------------------------------- catching up with the journal


def _catch_up(file: HistoryFile, journal: Journal) -> str:
    """Make the rows that the file lacks from the journal. Return what the journal does not have; empty: nothing."""
    position, foreign = _position(file), ""
    is_own = file.belongs_to(journal.identity)
    if position is not None and not (is_own and position.is_in(journal)):
        file.clear()
        position, foreign = None, FOREIGN
    complete_until = 0 if position is None else position.seq
    if complete_until == journal.last_seq:
        return foreign
    state, after = _begin(journal, complete_until)
    begin_s, ledger, rows = state.now_s, Ledger(state), list[Row]()
    if position is None and ledger.nodes:
        add(file, [row._replace(place=(after << PLACE_BITS) + row.place) for row in ledger.nodes], None)
    for item in journal.scan(after):
        if isinstance(item, Damage):
            continue
        rows += ledger.take(*item)
        if item.seq <= complete_until:
            rows.clear()
        elif len(rows) >= BATCH or item.seq == journal.last_seq:
            add(file, rows, Position(item.seq, item.now_s))
            rows.clear()
    if after <= complete_until:
        return foreign
    since = "" if position is None else f"after {time_text(position.now_s)} and "
    gap = f"history.db has no leases that ended {since}before {time_text(begin_s)}: the journal has none"
    return f"{foreign}; {gap}" if foreign else gap


def _position(file: HistoryFile) -> Position | None:
    return next((Position(*row) for row in file.rows("SELECT seq, now_s FROM position")), None)


def _begin(journal: Journal, complete_until: int) -> tuple[SchedulerState, int]:
    """Return a state from which a ledger can begin, and its record: if possible, none after `complete_until`."""
    snapshot = None
    for entry in journal.snapshots():
        if isinstance(entry, Snapshot):
            snapshot = entry
            if entry.seq <= complete_until:
                break
    first = next(iter(journal.scan()), None)
    has_all = isinstance(first, Record) and first.seq == 1
    if snapshot is not None and snapshot.seq > complete_until and has_all:
        snapshot = None
    if snapshot is None:
        return SchedulerState(), 0
    return SchedulerState.restore(snapshot.payload), snapshot.seq
