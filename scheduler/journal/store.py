"""The journal in a SQLite file. docs/journal-format.md says what is in it and why.

Rules:
- `append` returns when the record is durable, and one transaction holds one record (simulations: see `durable`);
- after a failed write nothing more is written: the state in memory is ahead of the file, so the process must end;
- nothing that could be read is ever thrown away because something else could not.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType

from scheduler.core.facts import Fact
from scheduler.journal import layout
from scheduler.journal.codec import VERSION, encode_facts, record_crc, snapshot_crc
from scheduler.journal.digest import digest, export
from scheduler.journal.errors import AppendFailed, Damage, DamagedJournal, NotAJournal, Unwritable
from scheduler.journal.lock import LockFile
from scheduler.journal.opening import copied, open_database, refuse_special
from scheduler.journal.reading import Holes, checked_snapshot, scan_rows
from scheduler.journal.record import Record, Row, Snapshot

BATCH_RECORDS = 1000  # to a transaction, when not durable
BATCH_BYTES = 8 * 2**20
COPY_PAGES, COPY_PAUSE_S = 256, 0.001  # a megabyte, then others may write
_ROWS = "SELECT seq, now_s, version, payload, crc FROM records WHERE seq > ? ORDER BY seq"


class CopyEnded(Exception):
    """A copy was given up in the middle."""


class SqliteJournal:
    """A journal in a file, created if it is not there.

    `durable=False` is for simulations: nothing is synced, and many records share a transaction. `read_only` looks at
    a copy, of a journal that no daemon has open. `strict` raises DamagedJournal where a file would have to be mended.
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
        self._failed = ""
        self._closing = ExitStack()
        refuse_special(self.path)
        with ExitStack() as opening:
            file = opening.enter_context(copied(self.path)) if read_only else self.path
            self._lock = LockFile(file)
            opening.callback(self._lock.close)
            try:
                opened = open_database(
                    file, self._lock.seq, durable=self._durable, strict=strict, name=self.path
                )
            except NotAJournal:
                self._lock.discard()
                raise
            self._db, self._seq, self.mended = opened  # mended: why the file had to be; empty if it had not
            opening.callback(self._db.close)
            if durable:
                self._lock.seq = self._seq
            self._closing = opening.pop_all()

    # Writing

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """One atomic record; durable on return, unless this journal is not."""
        if not facts:
            return
        self._check_writable()
        if not math.isfinite(now_s):
            raise Unwritable(f"the time of a record is {now_s}, and must be a finite number")
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
        """Hand everything to SQLite that waits for a full batch."""
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
            self._db.execute("BEGIN")
            self._db.executemany(layout.INSERT_RECORD, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fail(error) from None

    def _fail(self, error: sqlite3.Error) -> AppendFailed:
        """Nothing is written after this."""
        self._failed = str(error)
        self._waiting.clear()
        if self._db.in_transaction:
            with suppress(
                sqlite3.Error
            ):  # SQLite has rolled back already, or will when the file is opened again
                self._db.execute("ROLLBACK")
        return layout.cannot_write(self.path, error)

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Keep the state after record `seq`; durable, and in the database file itself, on return."""
        self._check_writable()
        if not 0 < seq <= self._seq:
            raise ValueError(f"a snapshot of record {seq}; records so far: {self._seq}")
        self.flush()
        try:
            self._db.execute(
                layout.INSERT_SNAPSHOT, (seq, VERSION, payload, snapshot_crc(seq, VERSION, payload))
            )
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._fail(error) from None

    def compact(self) -> int:
        """Delete records that the last two snapshots both cover, and older snapshots. How many records went."""
        self._check_writable()
        self.flush()
        newest = list(self.snapshots())[:2]
        if len(newest) < 2 or any(isinstance(found, Damage) for found in newest):
            return 0
        until = newest[1].seq  # type: ignore[union-attr]
        try:
            self._db.execute("BEGIN")
            gone = self._db.execute("DELETE FROM records WHERE seq <= ?", (until,)).rowcount
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (until,))
            layout.put_meta(self._db, "compacted", str(until))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fail(error) from None
        return gone

    def set_aside(self, damage: Sequence[Damage]) -> None:
        """Move what is damaged to the quarantine; what is there already stays as it is."""
        self._check_writable()
        try:
            self._db.execute("BEGIN")
            for found in damage:
                table = "records" if found.part == "record" else "snapshots"
                self._db.execute(f"DELETE FROM {table} WHERE seq BETWEEN ? AND ?", (found.first, found.last))  # noqa: S608
                known = "SELECT 1 FROM quarantine WHERE part = ? AND first_seq = ? AND last_seq = ?"
                if not self._db.execute(known, (found.part, found.first, found.last)).fetchone():
                    self._db.execute(
                        layout.INSERT_QUARANTINE,
                        (found.part, found.first, found.last, found.why, found.payload),
                    )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fail(error) from None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a word about the journal, such as what made it."""
        self._check_writable()
        try:
            layout.put_meta(self._db, key, value)
        except sqlite3.Error as error:
            raise self._fail(error) from None

    # Reading

    @property
    def last_seq(self) -> int:
        """The number of the last record, readable or not; 0 when there is none."""
        return self._seq

    @property
    def meta(self) -> dict[str, str]:
        """What is said about the journal."""
        return layout.get_meta(self._db)

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Everything after record `after`, in order; damage stands where the records would."""
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
                f"{self.path} is damaged: {error}; open it again to have it mended"
            ) from None

    def records(self, after: int = 0) -> Iterator[Record]:
        """The sound records after record `after`."""
        return (found for found in self.scan(after) if isinstance(found, Record))

    def read(self) -> Iterator[tuple[float, Fact]]:
        """The facts of all sound records, oldest first."""
        return ((record.now_s, fact) for record in self.records() for fact in record.facts)

    def snapshots(self) -> Iterator[Snapshot | Damage]:
        """Snapshots, newest first; each is read when it is asked for."""
        for (seq,) in self._db.execute("SELECT seq FROM snapshots ORDER BY seq DESC").fetchall():
            row = self._db.execute("SELECT version, payload, crc FROM snapshots WHERE seq = ?", (seq,))
            version, payload, crc = row.fetchone()
            yield checked_snapshot(seq, version, payload, crc, self.path)

    def digest(self) -> str:
        """SHA-256 over all sound records: equal for two journals that hold the same."""
        return digest(self._rows())

    def export(self, path: str | Path) -> int:
        """Write all sound records as JSON lines; how many."""
        return export(self._rows(), path)

    def _rows(self) -> Iterator[Row]:
        self.flush()
        for values in self._db.execute(_ROWS, (0,)):
            row = Row(*values)
            if row.is_sound:
                yield row

    def copy_to(self, path: str | Path, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """A journal of its own with all that is in this one, as of the end of the copying; not synced.

        Takes some seconds per gigabyte. It may run in a thread while others append over the same connection: SQLite
        copies part by part, and puts into the copy what is written in between. CopyEnded when nobody wants it any more.
        """

        def pause(*_: int) -> None:
            if not is_wanted():
                raise CopyEnded(f"{path} is not wanted any more")
            time.sleep(COPY_PAUSE_S)

        self.flush()
        with closing(sqlite3.connect(path)) as copy:
            copy.execute(
                "PRAGMA synchronous=OFF"
            )  # else the last part holds everybody up until it is on disk
            self._db.backup(copy, pages=COPY_PAGES, progress=pause, sleep=COPY_PAUSE_S)

    # The end

    def close(self) -> None:
        """Write what waits, and let go of the file. A journal whose write failed is left as it is."""
        with self._closing:
            if not self._failed:
                self.flush()

    def __enter__(self) -> SqliteJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
