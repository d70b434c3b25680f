"""Usage: GPU seconds and cost of each user, tenant and job type by day (UTC), kept in `usage.db`.

The state has the total GPU time of each job; the file has the part of this total that is booked. Soon after a lease
closes, the rest is booked, in one transaction with the new total, so nothing is booked twice or left out. The file also
states until when it is complete. When the scheduler starts, it compares state and file only for the jobs that had not
ended by then, and so finds the GPU time that was not booked before a stop or a crash. A lost file is rebuilt from the
jobs of the state.

Unbooked GPU time is booked as if the job had run without a break until the booking, or until its end if it has ended.
Running leases are added when usage is read. If jobs are packed on a GPU, the GPU's time counts in full for each job,
and each pays a part of the cost.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from scheduler.core.accounts.credit import cost_by
from scheduler.core.state import SchedulerState
from scheduler.live.job_feed import JobChanges
from scheduler.live.private_database import open_private
from scheduler.live.world import LiveWorld
from scheduler.model.jobs import Job, JobSpec, JobState

DAY_S = 86_400.0
# How many jobs are booked in one transaction.
BATCH = 500
LOST = "`gavel usage` counts only the jobs that the scheduler still has"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    id TEXT PRIMARY KEY, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL,
    submitted_s REAL NOT NULL, state TEXT NOT NULL, ended_s REAL, booked BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (
    day INTEGER NOT NULL, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL, worker_type TEXT NOT NULL,
    gpu_s REAL NOT NULL, cost REAL NOT NULL, PRIMARY KEY (day, user, tenant, job_type, worker_type)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS complete (only INTEGER PRIMARY KEY CHECK (only = 1), until_s REAL NOT NULL);
CREATE INDEX IF NOT EXISTS job_by_submission ON job (submitted_s);
CREATE INDEX IF NOT EXISTS job_by_end ON job (ended_s);
"""


def _for_each_column(query: str) -> dict[str, str]:
    """Return the query for each column that usage can be listed by."""
    query = query.replace("OF_USER", "(:user = '' OR user = :user)")
    return {column: query.replace("COLUMN", column) for column in ("user", "tenant", "job_type")}


_USED_QUERIES = _for_each_column(
    "SELECT COLUMN, worker_type, sum(gpu_s), sum(cost) FROM used "
    "WHERE day >= :first AND day < :end AND OF_USER GROUP BY 1, 2"
)
_SUBMITTED_QUERIES = _for_each_column(
    "SELECT COLUMN, count(*) FROM job "
    "WHERE submitted_s >= :first * :day_s AND submitted_s < :end * :day_s AND OF_USER GROUP BY 1"
)
_ENDED_QUERIES = _for_each_column(
    "SELECT COLUMN, state, count(*) FROM job "
    "WHERE ended_s >= :first * :day_s AND ended_s < :end * :day_s AND OF_USER GROUP BY 1, 2"
)


class Row(msgspec.Struct):
    """The usage of one user, tenant or job type."""

    # The name of the user, tenant or job type.
    who: str
    # GPU seconds by worker type.
    gpu_s: dict[str, float] = msgspec.field(default_factory=dict)
    cost: float = 0.0
    # Jobs that were submitted in the time asked for.
    jobs: int = 0
    # Jobs that ended in that time.
    completed: int = 0
    failed: int = 0


class Total(NamedTuple):
    """The total usage of a job: seconds and GPU seconds by worker type, and cost."""

    time_s: dict[str, float]
    gpu_s: dict[str, float]
    cost: float


class Entry(NamedTuple):
    """The figures of a job that are to be booked; `at_s` is the time until which the job used its GPUs."""

    job: str
    spec: JobSpec
    submitted_s: float
    state: str
    ended_s: float | None
    total: Total
    at_s: float


_NOTHING = Total({}, {}, 0.0)
_decoder = msgspec.msgpack.Decoder(Total)


class Usage:
    """The usage database. `book_changes` updates it and has to be called in a loop; `rows` reads it."""

    def __init__(self, world: LiveWorld, changes: JobChanges, path: Path) -> None:
        self._world = world
        self._pending = changes.pending()
        self._booking = asyncio.Lock()
        # synchronous = NORMAL: rows lost to a power failure are booked again at the start.
        self._db, self.warning = open_private(path, _SCHEMA, loss=LOST)
        (until_s,) = self._db.execute("SELECT max(until_s) FROM complete").fetchone()
        unbooked = {
            job.id
            for job in world.state.jobs.values()
            if until_s is None or job.ended_s is None or job.ended_s >= until_s
        }
        self._pending.add(unbooked, world.now_s())
        # A lock, because a task may be cancelled while its thread still writes.
        self._lock = threading.Lock()

    async def book_changes(self) -> None:
        """Wait until a job has changed, then book all usage that has not been booked yet."""
        await self._pending.wait()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Book all usage that has not been booked yet. After a failure, nothing is booked twice."""
        async with self._booking:
            with self._pending.taking() as pending:
                until_s, names = _complete_until(self._world.state), list(pending)
                for start in range(0, len(names), BATCH):
                    # Jobs that the state has forgotten were booked before.
                    known = self._world.state.jobs
                    jobs = [known[name] for name in names[start : start + BATCH] if name in known]
                    entries = [_entry(job, self._world.now_s()) for job in jobs]
                    is_last = start + BATCH >= len(names)
                    await asyncio.to_thread(self._write, entries, until_s if is_last else None)

    @property
    def pending(self) -> Container[str]:
        """Jobs that have changed and are perhaps not booked yet."""
        return self._pending

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _write(self, entries: Sequence[Entry], until_s: float | None) -> None:
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for entry in entries:
                self._write_entry(entry)
            if until_s is not None:
                self._db.execute("INSERT OR REPLACE INTO complete VALUES (1, ?)", (until_s,))

    def _write_entry(self, entry: Entry) -> None:
        row = self._db.execute("SELECT state, booked FROM job WHERE id = ?", (entry.job,)).fetchone()
        booked = _NOTHING if row is None else _decoder.decode(row[1])
        if row is not None and row[0] == entry.state and booked == entry.total:
            return
        owner = (entry.spec.user, entry.spec.tenant, entry.spec.job_type)
        self._db.execute(
            "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(entry.job, *owner, entry.submitted_s, entry.state, entry.ended_s),
                msgspec.msgpack.encode(entry.total),
            ),
        )
        self._db.executemany(
            "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "gpu_s = gpu_s + excluded.gpu_s, cost = cost + excluded.cost",
            [(day, *owner, kind, gpu_s, cost) for day, kind, gpu_s, cost in _spread(entry, booked)],
        )

    # Reading.

    async def rows(self, by: str, since_s: float | None, until_s: float | None, user: str = "") -> list[Row]:
        """Return usage by user, tenant or job type over the days that these times touch, highest cost first."""
        await self.catch_up()
        first = -math.inf if since_s is None else math.floor(since_s / DAY_S)
        # The day after the last one.
        end = math.inf if until_s is None else math.ceil(until_s / DAY_S)
        rows = await asyncio.to_thread(self._read, by, first, end, user)
        _add_running(rows, self._world.state, self._world.now_s(), by, (first * DAY_S, end * DAY_S), user)
        return sorted(rows.values(), key=lambda row: (-row.cost, -sum(row.gpu_s.values()), row.who))

    def _read(self, by: str, first: float, end: float, user: str) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        values = {"first": first, "end": end, "user": user, "day_s": DAY_S}
        with self._lock:
            used = self._db.execute(_USED_QUERIES[by], values).fetchall()
            submitted = self._db.execute(_SUBMITTED_QUERIES[by], values).fetchall()
            ended = self._db.execute(_ENDED_QUERIES[by], values).fetchall()
        for name, kind, gpu_s, cost in used:
            row = rows.setdefault(name, Row(name))
            row.gpu_s[kind] = gpu_s
            row.cost += cost
        for name, count in submitted:
            rows.setdefault(name, Row(name)).jobs = count
        for name, state, count in ended:
            row = rows.setdefault(name, Row(name))
            row.completed += count if state == JobState.COMPLETED else 0
            row.failed += count if state == JobState.FAILED else 0
        return rows


def _complete_until(state: SchedulerState) -> float:
    """Return the latest time for which this is true: all jobs that ended earlier have given up their leases."""
    ends = [state.jobs[holding.lease.job].ended_s for holding in state.leases.values()]
    return min([state.now_s, *(end_s for end_s in ends if end_s is not None)])


def _entry(job: Job, now_s: float) -> Entry:
    total = Total(dict(job.time_s), dict(job.gpu_s), job.cost_usd)
    at_s = now_s if job.ended_s is None or job.lease or job.leaving else job.ended_s
    return Entry(job.id, job.spec, job.submitted_s, job.state.value, job.ended_s, total, at_s)


def _spread(entry: Entry, booked: Total) -> Iterator[tuple[int, str, float, float]]:
    """Spread unbooked usage over the days before `at_s`: yield (day, worker type, GPU seconds, cost)."""
    unbooked = {kind: gpu_s - booked.gpu_s.get(kind, 0.0) for kind, gpu_s in entry.total.gpu_s.items()}
    unbooked = {kind: gpu_s for kind, gpu_s in unbooked.items() if gpu_s > 0}
    all_gpu_s = sum(unbooked.values())
    cost = max(entry.total.cost - booked.cost, 0.0)
    for kind, gpu_s in unbooked.items():
        ran_s = entry.total.time_s.get(kind, 0.0) - booked.time_s.get(kind, 0.0)
        for day, fraction in _days(entry.at_s - max(ran_s, 0.0), entry.at_s):
            yield day, kind, gpu_s * fraction, cost * gpu_s / all_gpu_s * fraction


def _days(since_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """Yield each day of a period, with the fraction of the period that falls on that day."""
    first, last = math.floor(since_s / DAY_S), math.floor(until_s / DAY_S)
    if first == last or until_s <= since_s:
        yield last, 1.0
        return
    for day in range(first, last + 1):
        inside_s = min(until_s, (day + 1) * DAY_S) - max(since_s, day * DAY_S)
        if inside_s > 0:
            yield day, inside_s / (until_s - since_s)


def _add_running(
    rows: dict[str, Row],
    state: SchedulerState,
    now_s: float,
    by: str,
    between: tuple[float, float],
    user: str,
) -> None:
    """Add the GPU time and cost of the leases that have not ended, as far as it lies `between` these two times."""
    for holding in state.leases.values():
        spec = state.jobs[holding.lease.job].spec
        if holding.started_s is None or now_s <= holding.started_s or (user and spec.user != user):
            continue
        ran_s = now_s - holding.started_s
        inside_s = min(now_s, between[1]) - max(holding.started_s, between[0])
        if inside_s <= 0:
            continue
        name = getattr(spec, by)
        row = rows.setdefault(name, Row(name))
        kind = holding.bundle.worker_type
        row.gpu_s[kind] = row.gpu_s.get(kind, 0.0) + inside_s * holding.bundle.gpus
        row.cost += cost_by(state, holding, now_s)[0] * inside_s / ran_s
