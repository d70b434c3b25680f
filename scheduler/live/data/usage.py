"""Who used how many GPU seconds, and what that cost: by day (UTC), kept in a file of its own.

A job in the state knows all the GPU time it has had, and the file how much of that it has booked; the difference is
booked soon after a lease closes, in one transaction with the note that it was. So nothing is booked twice or left out:
what a stop or a crash left unbooked is found by comparing at the next start, and a file that is gone is made again from
the jobs that are known.

Time is booked on the days before the moment at which it is found. What runs is added whenever somebody asks. Packed
jobs use the same GPUs: each is said to use them all, and pays its part.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from scheduler.core.credit import cost_by
from scheduler.core.state import SchedulerState
from scheduler.live.job_feed import JobChanges
from scheduler.live.private_database import open_private
from scheduler.live.world import LiveWorld
from scheduler.model.jobs import Job, JobSpec, JobState

log = logging.getLogger(__name__)

DAY_S = 86_400.0
PAUSE_S = 2.0  # between two transactions
BATCH = 500  # jobs to a transaction
LOST = "`gavel usage` counts only the jobs that the scheduler still knows"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    id TEXT PRIMARY KEY, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL,
    submitted_s REAL NOT NULL, state TEXT NOT NULL, ended_s REAL, booked BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (
    day INTEGER NOT NULL, user TEXT NOT NULL, tenant TEXT NOT NULL, job_type TEXT NOT NULL, worker_type TEXT NOT NULL,
    gpu_s REAL NOT NULL, cost REAL NOT NULL, PRIMARY KEY (day, user, tenant, job_type, worker_type)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_by_submission ON job (submitted_s);
CREATE INDEX IF NOT EXISTS job_by_end ON job (ended_s);
"""


def _by(question: str) -> dict[str, str]:
    """The same question for each column that people may ask by."""
    mine = "(:user = '' OR user = :user)"
    return {who: question.replace("WHO", who).replace("MINE", mine) for who in ("user", "tenant", "job_type")}


_USED = _by(
    "SELECT WHO, worker_type, sum(gpu_s), sum(cost) FROM used "
    "WHERE day >= :first AND day < :last AND MINE GROUP BY 1, 2"
)
_SUBMITTED = _by(
    "SELECT WHO, count(*) FROM job "
    "WHERE submitted_s >= :first * :day_s AND submitted_s < :last * :day_s AND MINE GROUP BY 1"
)
_ENDED = _by(
    "SELECT WHO, state, count(*) FROM job "
    "WHERE ended_s >= :first * :day_s AND ended_s < :last * :day_s AND MINE GROUP BY 1, 2"
)


class Row(msgspec.Struct):
    """What one user, tenant or job type used."""

    who: str
    gpu_s: dict[str, float] = msgspec.field(default_factory=dict)
    cost: float = 0.0
    jobs: int = 0  # submitted in that time
    completed: int = 0  # ended in that time
    failed: int = 0


class Had(NamedTuple):
    """What a job has had, by worker type: seconds, GPU seconds; and its cost."""

    time_s: dict[str, float]
    gpu_s: dict[str, float]
    cost: float


class Found(NamedTuple):
    """A job as it is to be in the books."""

    job: str
    spec: JobSpec
    submitted_s: float
    state: str
    ended_s: float | None
    had: Had
    at_s: float


_NOTHING = Had({}, {}, 0.0)
_decoder = msgspec.msgpack.Decoder(Had)


class Usage:
    """The books. `run` keeps them; `rows` reads them."""

    def __init__(self, world: LiveWorld, changes: JobChanges, path: Path) -> None:
        self._world = world
        self._pending = changes.pending()
        self._pending.add(set(world.state.jobs), world.now_s())
        self._booking = asyncio.Lock()
        # synchronous = NORMAL: what a power cut takes is booked again at the start.
        self._db, self.warning = open_private(path, _SCHEMA, lost=LOST)
        self._lock = threading.Lock()  # a task may be cancelled while its thread writes on

    async def run(self) -> None:
        """Book what has changed, until cancelled."""
        while True:
            await self._pending.some()
            try:
                await self.catch_up()
            except sqlite3.Error as error:  # a full disk, say
                log.error("usage cannot be booked, and is tried again: %s", error)
            await asyncio.sleep(PAUSE_S)

    async def catch_up(self) -> None:
        """Book what has not been booked yet."""
        async with self._booking:
            names = list(self._pending.take_now())
            try:
                for at in range(0, len(names), BATCH):
                    known = self._world.state.jobs  # what is forgotten was booked before
                    jobs = [known[name] for name in names[at : at + BATCH] if name in known]
                    found = [_found(job, self._world.now_s()) for job in jobs]
                    await asyncio.to_thread(self._write, found)
            except BaseException:
                self._pending.add(set(names), self._world.now_s())  # what was booked is not booked again
                raise

    @property
    def pending(self) -> Container[str]:
        """Jobs that have changed and may not be booked yet."""
        return self._pending

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._db.close()

    def _write(self, found: Sequence[Found]) -> None:
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for one in found:
                self._write_one(one)

    def _write_one(self, one: Found) -> None:
        row = self._db.execute("SELECT state, booked FROM job WHERE id = ?", (one.job,)).fetchone()
        booked = _NOTHING if row is None else _decoder.decode(row[1])
        if row is not None and row[0] == one.state and booked == one.had:
            return
        who = (one.spec.user, one.spec.tenant, one.spec.job_type)
        self._db.execute(
            "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(one.job, *who, one.submitted_s, one.state, one.ended_s),
                msgspec.msgpack.encode(one.had),
            ),
        )
        self._db.executemany(
            "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "gpu_s = gpu_s + excluded.gpu_s, cost = cost + excluded.cost",
            [(day, *who, kind, gpu_s, cost) for day, kind, gpu_s, cost in _spread(one, booked)],
        )

    # ---------------------------------------------------------------------------------------------------- reading

    async def rows(self, by: str, since_s: float | None, until_s: float | None, user: str = "") -> list[Row]:
        """By user, tenant or job type, over the days that these times touch; whoever cost or used most first."""
        await self.catch_up()
        first = -math.inf if since_s is None else math.floor(since_s / DAY_S)
        last = math.inf if until_s is None else math.ceil(until_s / DAY_S)  # not that day any more
        rows = await asyncio.to_thread(self._read, by, first, last, user)
        _add_running(rows, self._world.state, self._world.now_s(), by, (first * DAY_S, last * DAY_S), user)
        return sorted(rows.values(), key=lambda row: (-row.cost, -sum(row.gpu_s.values()), row.who))

    def _read(self, by: str, first: float, last: float, user: str) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        given = {"first": first, "last": last, "user": user, "day_s": DAY_S}
        with self._lock:
            used = self._db.execute(_USED[by], given).fetchall()
            submitted = self._db.execute(_SUBMITTED[by], given).fetchall()
            ended = self._db.execute(_ENDED[by], given).fetchall()
        for who, kind, gpu_s, cost in used:
            row = rows.setdefault(who, Row(who))
            row.gpu_s[kind] = gpu_s
            row.cost += cost
        for who, count in submitted:
            rows.setdefault(who, Row(who)).jobs = count
        for who, state, count in ended:
            row = rows.setdefault(who, Row(who))
            row.completed += count if state == JobState.COMPLETED else 0
            row.failed += count if state == JobState.FAILED else 0
        return rows


def _found(job: Job, now_s: float) -> Found:
    had = Had(dict(job.time_s), dict(job.gpu_s), job.cost_usd)
    at_s = now_s if job.ended_s is None or job.lease or job.leaving else job.ended_s
    return Found(job.id, job.spec, job.submitted_s, job.state.value, job.ended_s, had, at_s)


def _spread(one: Found, booked: Had) -> Iterator[tuple[int, str, float, float]]:
    """(day, worker type, GPU seconds, cost) of what is new, over the time before it was found."""
    new = {kind: gpu_s - booked.gpu_s.get(kind, 0.0) for kind, gpu_s in one.had.gpu_s.items()}
    new = {kind: gpu_s for kind, gpu_s in new.items() if gpu_s > 0}
    total = sum(new.values())
    cost = max(one.had.cost - booked.cost, 0.0)
    for kind, gpu_s in new.items():
        ran_s = one.had.time_s.get(kind, 0.0) - booked.time_s.get(kind, 0.0)
        for day, part in _days(one.at_s - max(ran_s, 0.0), one.at_s):
            yield day, kind, gpu_s * part, cost * gpu_s / total * part


def _days(since_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """The days of a time, and what part of it falls on each."""
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
    """Leases that are not over yet, with their part of the time that was asked for."""
    for holding in state.leases.values():
        spec = state.jobs[holding.lease.job].spec
        if holding.started_s is None or now_s <= holding.started_s or (user and spec.user != user):
            continue
        ran_s = now_s - holding.started_s
        inside_s = min(now_s, between[1]) - max(holding.started_s, between[0])
        if inside_s <= 0:
            continue
        who = getattr(spec, by)
        row = rows.setdefault(who, Row(who))
        kind = holding.bundle.worker_type
        row.gpu_s[kind] = row.gpu_s.get(kind, 0.0) + inside_s * holding.bundle.gpus
        row.cost += cost_by(state, holding, now_s)[0] * inside_s / ran_s
