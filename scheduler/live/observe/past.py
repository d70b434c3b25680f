"""Questions about the past: the leases of a job, rounds, and what tenants were due and received.

All are answered from `history.db`, in threads. Callers bring the file up to date first, and add what has not ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.live.observe.books import Answer, OpenTime, Question, gpu_time
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.job_filter import is_of_tenant
from scheduler.live.observe.past_rows import PastLease, PastRound
from scheduler.live.threads import in_thread

# A place, or a number of a round, after all others.
LAST = 2**63 - 1
# How many rows an answer about shares may have: steps times tenants times worker types.
ROWS_MAX = 50_000
# GPU time below this is rounding.
TINY_S = 1e-6
_LEASES = "SELECT * FROM lease WHERE job = ? AND place < ? ORDER BY place DESC LIMIT ?"
_BEFORE = "SELECT * FROM lease WHERE job = ? AND place < ? AND (steps IS NOT NULL OR attempt = 1)"
_BEFORE += " ORDER BY place DESC LIMIT 1"
_NODE = " AND instr(' ' || on_gpus, ' ' || :node || ':')"
# Later ends have greater places.
_LEASES_OF_ALL = """
SELECT * FROM lease WHERE ended_ms > :since AND ended_ms <= :ended AND +place < :place AND granted_ms < :until{node}
ORDER BY ended_ms DESC, place DESC LIMIT :size
"""
_ROUNDS = """
SELECT round.*, allocation.policy, allocation.solve_ms, allocation.failed
FROM round LEFT JOIN allocation ON allocation.number = round.allocation
WHERE round.number < ? AND ends_ms > ? AND starts_ms < ? ORDER BY round.number DESC LIMIT ?
"""
# The GPUs that the allocations gave to tenants while they were in force between two times.
_DUE = """
SELECT tenants.key AS tenant, types.key AS worker_type, types.value AS gpus, begin, end FROM (
    SELECT shares, max(adopted_ms, :since) AS begin, lead(adopted_ms, 1, :until) OVER (ORDER BY number) AS end
    FROM allocation WHERE adopted_ms < :until
    AND number >= coalesce((SELECT max(number) FROM allocation WHERE adopted_ms <= :since), 0)
), json_each(shares) AS tenants, json_each(tenants.value) AS types
"""
# The GPUs of leases that ran between two times. The plus has SQLite use the index of ends.
_RECEIVED = """
SELECT tenant, worker_type, gpus, max(started_ms, :since) AS begin, min(ended_ms, :until) AS end FROM lease
WHERE ended_ms > :since AND started_ms < :until AND +place < :before
"""
# The sums of one of these over those that begin in one step and end in another: of their GPUs, and of their GPU time in
# the first of these steps and in the last.
_SUMS = """
SELECT tenant, worker_type, first, last, sum(gpus),
    sum(gpus * (min(end, :since + (first + 1) * :step) - begin)), sum(gpus * (end - max(begin, :since + last * :step)))
FROM (SELECT *, (begin - :since) / :step AS first, (end - 1 - :since) / :step AS last FROM (HELD) WHERE end > begin)
GROUP BY 1, 2, 3, 4
"""
SUMS_DUE, SUMS_RECEIVED = (_SUMS.replace("HELD", held) for held in (_DUE, _RECEIVED))

Floats = NDArray[np.float64]


class Period(NamedTuple):
    """A time span that is divided into steps. The last step may be shorter. All in milliseconds."""

    since_ms: int
    until_ms: int
    step_ms: int


class RoundPast(NamedTuple):
    """A round, and the allocation by which it was planned."""

    round: PastRound
    # The policy is empty if there was no allocation yet, or if it is too old.
    policy: str
    solve_ms: int | None
    failed: str


class Held(NamedTuple):
    """GPUs that a tenant held from one time to another, in milliseconds."""

    tenant: str
    worker_type: str
    gpus: float
    begin_ms: int
    end_ms: int


class Account(NamedTuple):
    """The GPU seconds of a worker type that a tenant was due, and those that it received, in a step."""

    step: int
    tenant: str
    worker_type: str
    due_s: float
    received_s: float


class Past:
    """The answers. Errors of the file are raised as sqlite3.Error."""

    def __init__(self, file: HistoryFile) -> None:
        self._file = file
        # Held by the one question about a long time that is being answered: any number of them occupies one thread.
        self._counting = asyncio.Lock()

    async def leases(self, job: str, before: int, size: int) -> list[PastLease]:
        """Return up to `size` ended leases of a job with places before `before`, the latest end first."""
        return [PastLease(*row) for row in await self._rows(_LEASES, (job, before, size))]

    async def steps_before(self, job: str, place: int) -> float | None:
        """Return the steps from which a job continued before this place; None if the table does not go back so far."""
        rows = await self._rows(_BEFORE, (job, place))
        return PastLease(*rows[0]).continues_at(0.0) if rows else None

    async def leases_of_all(
        self, since_ms: int, until_ms: int, node: str, before: tuple[int, int], size: int
    ) -> list[PastLease]:
        """Return up to `size` leases that touch this time, the latest end first; if a node is given, those on it.

        `before`: the end and the place of the last lease of the previous page, or places that are later than all.
        """
        query = _LEASES_OF_ALL.format(node=_NODE if node else "")
        ended_ms, place = before
        values = {"since": since_ms, "until": until_ms, "node": node, "size": size}
        values |= {"ended": ended_ms, "place": place}
        rows = list[Any]()
        async with self._counting:
            await in_thread(partial(self._file.read_long, query, values, rows.extend))
        return [PastLease(*row) for row in rows]

    async def rounds(self, since_ms: int, until_ms: int, before: int, size: int) -> list[RoundPast]:
        """Return up to `size` rounds with numbers before `before` that touch this time, the latest first."""
        rows = await self._rows(_ROUNDS, (before, since_ms, until_ms, size))
        return [RoundPast(PastRound(*row[:-3]), row[-3] or "", row[-2], row[-1] or "") for row in rows]

    async def accounts(
        self, period: Period, tenant: str, held: Iterable[Held], before: int = LAST
    ) -> list[Account]:
        """Return what a tenant and those below it were due and received in each step; all tenants if it is empty.

        `held`: GPUs of leases that had not ended before this place. Raises TooManyRows.
        """
        work = partial(self._accounts, period, tenant, list(held), before)
        async with self._counting:
            return await in_thread(work)

    def _accounts(self, period: Period, tenant: str, held: Sequence[Held], before: int) -> list[Account]:
        since_ms, until_ms, step_ms = period
        values = {"since": since_ms, "until": until_ms, "step": step_ms, "before": before}
        due, received = _Sums(period, tenant), _Sums(period, tenant)
        for query, sums in ((SUMS_DUE, due), (SUMS_RECEIVED, received)):
            self._file.read_long(query, values, sums.add_rows)
        for entry in held:
            received.add(entry)
        return _accounts(due.by_kind(), received.by_kind())

    async def gpu_time(self, question: Question, open_leases: Sequence[OpenTime], before: int) -> Answer:
        """Return the time of GPUs by kind. `open_leases` are those that had not ended before this place."""
        work = partial(gpu_time, self._file, question, open_leases, before)
        async with self._counting:
            return await in_thread(work)

    async def _rows(self, query: str, values: Any) -> list[Any]:
        return await in_thread(partial(self._file.rows, query, values))


class TooManyRows(Exception):
    """The answer would have too many rows."""


class _Sums:
    """GPU time by tenant and worker type, in steps. Times are in milliseconds since the beginning of the period."""

    def __init__(self, period: Period, tenant: str) -> None:
        self._period, self._tenant = period, tenant
        self._count = -(-(period.until_ms - period.since_ms) // period.step_ms)
        # Time that covers a part of a step; and, for whole steps, where GPUs begin and cease to be held.
        self._parts: dict[tuple[str, str], Floats] = {}
        self._changes: dict[tuple[str, str], Floats] = {}

    def add(self, held: Held) -> None:
        """Add GPUs that were held for a time, which may be partly outside the period."""
        since_ms, until_ms, step_ms = self._period
        begin_ms = max(held.begin_ms, since_ms) - since_ms
        end_ms = min(held.end_ms, until_ms) - since_ms
        if begin_ms < end_ms:
            first, last = begin_ms // step_ms, (end_ms - 1) // step_ms
            head_ms = min(end_ms, (first + 1) * step_ms) - begin_ms
            tail_ms = end_ms - max(begin_ms, last * step_ms)
            self.add_sum(held[:2], first, last, held.gpus, held.gpus * head_ms, held.gpus * tail_ms)

    def add_rows(self, rows: Iterable[Any]) -> None:
        """Add the rows of SUMS_DUE or SUMS_RECEIVED."""
        for name, worker_type, *sums in rows:
            self.add_sum((name, worker_type), *sums)

    def add_sum(
        self, kind: tuple[str, str], first: int, last: int, gpus: float, head_ms: float, tail_ms: float
    ) -> None:
        """Add GPUs that are held from step `first` to step `last`: their number, and their GPU time in both."""
        if not is_of_tenant(kind[0], self._tenant):
            return
        if kind not in self._parts:
            if (len(self._parts) + 1) * self._count > ROWS_MAX:
                raise TooManyRows
            self._parts[kind], self._changes[kind] = np.zeros(self._count), np.zeros(self._count)
        part, changes = self._parts[kind], self._changes[kind]
        part[first] += head_ms
        if first < last:
            part[last] += tail_ms
            changes[first + 1] += gpus * self._period.step_ms
            changes[last] -= gpus * self._period.step_ms

    def by_kind(self) -> dict[tuple[str, str], Floats]:
        """Return the GPU seconds in each step."""
        return {kind: (part + self._changes[kind].cumsum()) / 1000 for kind, part in self._parts.items()}


def _accounts(
    due_s: dict[tuple[str, str], Floats], received_s: dict[tuple[str, str], Floats]
) -> list[Account]:
    accounts = []
    for kind in due_s.keys() | received_s.keys():
        times = zip_longest(due_s.get(kind, ()), received_s.get(kind, ()), fillvalue=0.0)
        accounts += [
            Account(step, *kind, *map(float, pair)) for step, pair in enumerate(times) if max(pair) > TINY_S
        ]
    return sorted(accounts)
