"""The books: the time of GPUs by kind, from the leases and nodes of the history.

What leases held is useful, restart, lost or idle (`division`), spread evenly over each lease. The rest of the time of
all GPUs is free, drained, broken or unreachable (`capacity`). Two packed jobs both count all of their GPUs; the time
that counts twice is `shared`. So, to rounding,

    useful + restart + lost + idle = held
    held - shared + free + drained + broken + unreachable = all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past_rows import unpacked_gpus
from scheduler.model.lease import GpuId, node_of

DAY_MS = 86_400_000
# Groups whose rows also have the time that leases did not hold.
OF_NODES = ("type", "node", "day")
# The length of the parts of a time that is not divided.
_ENDLESS_MS = 2**62
_KEYS = {"type": "worker_type", "node": "on_gpus", "day": "begin / :part"}
_NODE_KEYS = {**_KEYS, "node": "node"}
_BEGIN = "SELECT min(at_ms) FROM node"
_CLAUSES = {
    # The plus has SQLite use the index of ends.
    "asked": """ended_ms > :since AND ended_ms - held_ms < :until AND held_ms > 0 AND +place < :before
        AND (:user = '' OR user = :user)""",
    # The lease held its GPUs within the time of the question and within one part.
    "whole": """ended_ms - held_ms >= :since AND ended_ms <= :until
        AND (ended_ms - held_ms) / :part = (ended_ms - 1) / :part""",
    # The time from the next part on, for each time that goes on; and all times, cut where parts begin.
    "later": "SELECT place, (begin / :part + 1) * :part, end FROM span WHERE (begin / :part + 1) * :part < end",
    "cut": "SELECT place, begin, min(end, (begin / :part + 1) * :part) AS end FROM span",
}
_HELD_WHOLE = """
SELECT {key}, sum(gpus * held_ms), sum(gpus * useful_ms), sum(gpus * lost_ms), sum(gpus * idle_ms),
    sum(gpus * shared_ms)
FROM (SELECT *, ended_ms - held_ms AS begin FROM lease WHERE {asked} AND {whole}) GROUP BY 1
"""
_HELD_CUT = """
WITH RECURSIVE span (place, begin, end) AS (
    SELECT place, max(ended_ms - held_ms, :since), min(ended_ms, :until) FROM lease WHERE {asked} AND NOT ({whole})
    UNION ALL {later}
), cut AS ({cut})
SELECT {key}, sum(gpu_ms), sum(gpu_ms * useful_ms / held_ms), sum(gpu_ms * lost_ms / held_ms),
    sum(gpu_ms * idle_ms / held_ms), sum(gpus * max(end - max(ended_ms - shared_ms, begin), 0))
FROM (SELECT *, 1.0 * gpus * (end - begin) AS gpu_ms FROM cut JOIN lease USING (place)) GROUP BY 1
"""
_ALL = """
WITH RECURSIVE span (place, begin, end) AS (
    SELECT place, max(at_ms, :since), end FROM (
        SELECT *, min(lead(at_ms, 1, :until) OVER (PARTITION BY node ORDER BY place), :until) AS end FROM node)
    WHERE max(at_ms, :since) < end AND gpus > 0
    UNION ALL {later}
), cut AS ({cut})
SELECT {key}, sum(gpus * span), sum(drained * span), sum(broken * span), sum(unreachable * span)
FROM (SELECT *, end - begin AS span FROM cut JOIN node USING (place)) GROUP BY 1
"""


class OpenTime(NamedTuple):
    """The time that a lease has held its GPUs until now, without having ended. All in milliseconds."""

    user: str
    tenant: str
    job_type: str
    worker_type: str
    gpus: tuple[GpuId, ...]
    begin_ms: int
    end_ms: int
    useful_ms: float
    lost_ms: float
    idle_ms: float
    # How long a lease that was sent earlier has held the same GPUs.
    shared_ms: int


class Question(NamedTuple):
    """The rows to return: one for each user, tenant, job type, worker type, node or day (UTC)."""

    by: str
    since_ms: int
    until_ms: int
    # Only the leases of this user; empty: of all.
    user: str = ""


class GpuTime(msgspec.Struct):
    """GPU milliseconds by kind."""

    held: float = 0.0
    useful: float = 0.0
    lost: float = 0.0
    idle: float = 0.0
    shared: float = 0.0
    all: float = 0.0
    drained: float = 0.0
    broken: float = 0.0
    unreachable: float = 0.0

    @property
    def restart(self) -> float:
        """The time that was held, but neither useful nor lost nor idle."""
        return max(self.held - self.useful - self.lost - self.idle, 0.0)

    @property
    def free(self) -> float:
        """The time in which no lease held the GPUs, although one could have."""
        unfree = self.held - self.shared + self.drained + self.broken + self.unreachable
        return max(self.all - unfree, 0.0)


class Answer(NamedTuple):
    """The rows by name, and the beginning of their time: later than asked if the history does not go back so far."""

    rows: dict[str, GpuTime]
    since_ms: int


def gpu_time(file: HistoryFile, question: Question, open_leases: Sequence[OpenTime], before: int) -> Answer:
    """Return the rows. `open_leases` are those that had not ended before this place."""
    ((begin_ms,),) = file.rows(_BEGIN)
    since_ms, until_ms, by = question.since_ms, question.until_ms, question.by
    since_ms = until_ms if begin_ms is None else min(max(since_ms, begin_ms), until_ms)
    question = question._replace(since_ms=since_ms)
    rows: dict[str, GpuTime] = {}
    for key, time in (*_held(file, question, before), *_open(open_leases, question), *_all(file, question)):
        _add(rows.setdefault(_day_name(key) if by == "day" else key, GpuTime()), time)
    return Answer(
        {name: rows[name] for name in sorted(rows) if rows[name].held + rows[name].all > 0}, since_ms
    )


def _day_name(day: int) -> str:
    """Return the day with this number since 1970, in UTC, as 2030-01-31."""
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC).date().isoformat()


def _held(file: HistoryFile, question: Question, before: int) -> Iterator[tuple[Any, GpuTime]]:
    """Yield the time of leases that have ended, by keys, some of them repeatedly."""
    values, rows = {**_values(question), "before": before}, list[Any]()
    for query in (_HELD_WHOLE, _HELD_CUT):
        key = _KEYS.get(question.by, question.by)
        file.read_long(query.format(key=key, **_CLAUSES), values, rows.extend)
    for key, *sums in rows:
        time = GpuTime(*sums)
        yield from _by_node(unpacked_gpus(key), time) if question.by == "node" else ((key, time),)


def _open(leases: Iterable[OpenTime], question: Question) -> Iterator[tuple[Any, GpuTime]]:
    """Yield the time of leases that have not ended."""
    by, part_ms = question.by, _part_ms(question)
    for lease in leases:
        begin_ms, last_ms = max(lease.begin_ms, question.since_ms), min(lease.end_ms, question.until_ms)
        if question.user not in ("", lease.user):
            continue
        while begin_ms < last_ms:
            part = begin_ms // part_ms
            end_ms = min((part + 1) * part_ms, last_ms)
            time = _open_time(lease, begin_ms, end_ms)
            key = part if by == "day" else getattr(lease, "worker_type" if by == "type" else by, "")
            yield from _by_node(lease.gpus, time) if by == "node" else ((key, time),)
            begin_ms = end_ms


def _open_time(lease: OpenTime, begin_ms: int, end_ms: int) -> GpuTime:
    """Return a part of the time of a lease."""
    gpus = len(lease.gpus)
    held = gpus * (end_ms - begin_ms)
    each = held / (lease.end_ms - lease.begin_ms)
    shared = gpus * max(end_ms - max(lease.end_ms - lease.shared_ms, begin_ms), 0)
    return GpuTime(held, lease.useful_ms * each, lease.lost_ms * each, lease.idle_ms * each, shared)


def _all(file: HistoryFile, question: Question) -> Iterator[tuple[Any, GpuTime]]:
    """Yield the time of all GPUs, and how much of it nothing could hold; nothing if this is unknown by such keys."""
    if question.by in OF_NODES and not question.user:
        rows = list[Any]()
        query = _ALL.format(key=_NODE_KEYS[question.by], **_CLAUSES)
        file.read_long(query, _values(question), rows.extend)
        for key, total, drained, broken, unreachable in rows:
            yield key, GpuTime(all=total, drained=drained, broken=broken, unreachable=unreachable)


def _values(question: Question) -> dict[str, Any]:
    """Return the values of a question in queries."""
    _, since_ms, until_ms, user = question
    return {"since": since_ms, "until": until_ms, "user": user, "part": _part_ms(question)}


def _part_ms(question: Question) -> int:
    """Return the length of the parts that are summed separately. Parts begin at its multiples."""
    return DAY_MS if question.by == "day" else _ENDLESS_MS


def _by_node(gpus: Sequence[GpuId], time: GpuTime) -> Iterator[tuple[str, GpuTime]]:
    """Divide the time of a lease among its nodes, by their GPUs."""
    for node, count in Counter(map(node_of, gpus)).items():
        part = count / len(gpus)
        yield node, GpuTime(*[value * part for value in msgspec.structs.astuple(time)])


def _add(total: GpuTime, time: GpuTime) -> None:
    for name in GpuTime.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(time, name))
