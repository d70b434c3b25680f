"""The journal in a SQLite file. docs/journal-format.md describes its content and the reasons.

Rules:
- `append` returns when the record is durable; one transaction holds one record (simulations: see `durable`);
- after a failed write, the journal accepts no further write: memory is ahead of the file, so the process must end;
- readable content is never dropped because other content is unreadable.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from scheduler.core.facts import Fact
from scheduler.journal import layout
from scheduler.journal.codec import VERSION, encode_facts, record_crc, snapshot_crc
from scheduler.journal.errors import AppendFailed, Damage, DamagedJournal, NotAJournal, Unwritable
from scheduler.journal.lock import LockFile
from scheduler.journal.opening import copied, open_database, refuse_special
from scheduler.journal.reading import Holes, checked_snapshot, scan_rows
from scheduler.journal.record import Record, Row, Snapshot

# The greatest size of a transaction if the journal is not durable.
BATCH_RECORDS = 1000
BATCH_BYTES = 8 * 2**20
# A copy proceeds by a megabyte at a time, with a pause for other writers.
COPY_PAGES, COPY_PAUSE_S = 256, 0.001
_ROWS = "SELECT seq, now_s, version, payload, crc FROM records WHERE seq > ? ORDER BY seq"


class CopyEnded(Exception):
    """A copy was abandoned before it was complete."""


class SqliteJournal:
    """A journal in a file, which is created if it does not exist.

    `durable=False` is for simulations: nothing is synced, and many records share a transaction. `read_only`
    copies the journal and reads the copy; no process may have the journal open. `strict` raises DamagedJournal instead
    of repairing a file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durable: bool = True,
        read_only: bool = False,
        strict: bool = False,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._durable = durable and not read_only
        self._batch_records = batch_records
        self._waiting: list[Row] = []
        self._waiting_bytes = 0
        # Why a write failed; empty if none has.
        self._failed = ""
        self._closing = ExitStack()
        refuse_special(self.path)
        with ExitStack() as opening:
            file = opening.enter_context(copied(self.path)) if read_only else self.path
            # The lock file also has the number of the last durable record, which shows whether the end is lost.
            self._lock = LockFile(file)
            opening.callback(self._lock.close)
            try:
                opened = open_database(
                    file, self._lock.seq, durable=self._durable, strict=strict, name=self.path
                )
            except NotAJournal:
                self._lock.discard()
                raise
            # `repair_reason` is empty if the file was sound.
            self._db, self._seq, self.repair_reason = opened
            opening.callback(self._db.close)
            if durable:
                self._lock.seq = self._seq
            self._closing = opening.pop_all()

    # Writing

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Append one atomic record. In a durable journal it is durable on return."""
        if not facts:
            return
        self._check_writable()
        if not math.isfinite(now_s):
            raise Unwritable(f"the time of a record is {now_s}; it must be finite")
        payload = encode_facts(facts)
        seq = self._seq + 1
        row = Row(seq, now_s, VERSION, payload, record_crc(seq, now_s, VERSION, payload))
        self._seq = seq
        if self._durable:
            self._write([row])
            self._lock.seq = seq
            return
        self._waiting.append(row)
        self._waiting_bytes += len(payload)
        if len(self._waiting) >= self._batch_records or self._waiting_bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the records that wait for a full batch."""
        if self._waiting:
            rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._write(rows)

    def _check_writable(self) -> None:
        if self.read_only:
            raise AppendFailed(f"{self.path} was opened for reading only")
        if self._failed:
            raise AppendFailed(f"{self.path}: an earlier write failed ({self._failed}); start again")

    def _write(self, rows: list[Row]) -> None:
        try:
            if len(rows) == 1:
                self._db.execute(layout.INSERT_RECORD, rows[0])
                return
        except sqlite3.Error as error:
            raise self._fail(error) from None
        with self._transaction():
            self._db.executemany(layout.INSERT_RECORD, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a block in one transaction: all of its writes succeed, or none."""
        try:
            self._db.execute("BEGIN")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fail(error) from None

    def _fail(self, error: sqlite3.Error) -> AppendFailed:
        """Prevent all further writing, and return the error to raise."""
        self._failed = str(error)
        self._waiting.clear()
        if self._db.in_transaction:
            # If this fails, SQLite has rolled back already, or will do so when the file is opened again.
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        return layout.cannot_write(self.path, error)

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Write a snapshot of the state after record `seq`.

        On return it is in the database file itself, not only in the write-ahead log, and is synced if the journal is
        durable.
        """
        self._check_writable()
        if not 0 < seq <= self._seq:
            raise ValueError(f"cannot write a snapshot of record {seq}: the last record is {self._seq}")
        self.flush()
        try:
            self._db.execute(
                layout.INSERT_SNAPSHOT, (seq, VERSION, payload, snapshot_crc(seq, VERSION, payload))
            )
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._fail(error) from None

    def compact(self) -> int:
        """Delete the records that both of the last two snapshots cover, and delete all older snapshots.

        Return the number of records deleted.
        """
        self._check_writable()
        self.flush()
        newest = list(self.snapshots())[:2]
        if len(newest) < 2 or any(isinstance(snapshot, Damage) for snapshot in newest):
            return 0
        until = newest[1].seq  # type: ignore[union-attr]
        with self._transaction():
            deleted: int = self._db.execute("DELETE FROM records WHERE seq <= ?", (until,)).rowcount
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (until,))
            layout.put_meta(self._db, "compacted", str(until))
        return deleted

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Move damaged records and snapshots to the quarantine, unless they are there already."""
        self._check_writable()
        in_quarantine = "SELECT 1 FROM quarantine WHERE part = ? AND first_seq = ? AND last_seq = ?"
        with self._transaction():
            for entry in damage:
                table = "records" if entry.part == "record" else "snapshots"
                self._db.execute(f"DELETE FROM {table} WHERE seq BETWEEN ? AND ?", (entry.first, entry.last))  # noqa: S608
                place = entry.part, entry.first, entry.last
                if not self._db.execute(in_quarantine, place).fetchone():
                    self._db.execute(layout.INSERT_QUARANTINE, (*place, entry.why, entry.payload))

    def set_meta(self, key: str, value: str) -> None:
        """Write a property of the journal, such as the program that created it."""
        self._check_writable()
        with self._transaction():
            layout.put_meta(self._db, key, value)

    # Reading

    @property
    def last_seq(self) -> int:
        """The number of the last record, readable or not; 0 if there is none."""
        return self._seq

    @property
    def identity(self) -> str:
        """A text that no other journal has, but for copies. A journal gets it when it is first asked for."""
        known = self.meta.get("identity", "")
        if not known and not self.read_only:
            known = secrets.token_hex(16)
            self.set_meta("identity", known)
        return known

    @property
    def meta(self) -> dict[str, str]:
        """The properties of the journal."""
        return layout.get_meta(self._db)

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield the records after record `after`, in order, with Damage in place of lost ones."""
        self.flush()
        compacted = int(self.meta.get("compacted", "0"))
        holes: Holes = [(1, compacted, "compacted into a snapshot")] if compacted else []
        holes += [
            (first, last, why.decode(errors="replace"))
            for first, last, why in self._db.execute(
                "SELECT first_seq, last_seq, why FROM quarantine WHERE part = 'record' ORDER BY id"
            )
        ]
        try:
            yield from scan_rows(self._db.execute(_ROWS, (after,)), after, self._seq, holes, self.path)
        except sqlite3.Error as error:
            raise DamagedJournal(
                f"{self.path} is damaged: {error}; open it again to have it repaired"
            ) from None

    def records(self, after: int = 0) -> Iterator[Record]:
        """Yield the sound records after record `after`."""
        return (item for item in self.scan(after) if isinstance(item, Record))

    def read(self) -> Iterator[tuple[float, Fact]]:
        """Yield the facts of all sound records, oldest first."""
        return ((record.now_s, fact) for record in self.records() for fact in record.facts)

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Yield the snapshots, newest first; each is read only when the caller asks for it."""
        for (seq,) in self._db.execute("SELECT seq FROM snapshots ORDER BY seq DESC").fetchall():
            row = self._db.execute("SELECT version, payload, crc FROM snapshots WHERE seq = ?", (seq,))
            version, payload, crc = row.fetchone()
            yield checked_snapshot(seq, version, payload, crc, self.path)

    def copy_to(self, path: str | Path, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Copy this journal to a new file, without syncing it. Raise CopyEnded when `is_wanted` returns False.

        Copying takes some seconds per gigabyte. Meanwhile, another thread may append over the same connection: SQLite
        copies in parts, and the copy includes all records that are written before it is complete.
        """

        def pause(*_: int) -> None:
            if not is_wanted():
                raise CopyEnded(f"the copy to {path} is no longer needed")
            time.sleep(COPY_PAUSE_S)

        self.flush()
        with closing(sqlite3.connect(path)) as copy:
            # With syncing, writers would be blocked until the last part of the copy is on disk.
            copy.execute("PRAGMA synchronous=OFF")
            self._db.backup(copy, pages=COPY_PAGES, progress=pause, sleep=COPY_PAUSE_S)

    # The end

    def close(self) -> None:
        """Write the records that wait for a full batch, unless an earlier write failed, and close the file."""
        with self._closing:
            if not self._failed:
                self.flush()

    def __enter__(self) -> SqliteJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
