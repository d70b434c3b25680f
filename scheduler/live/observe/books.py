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
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past_rows import unpacked_gpus
from scheduler.model.lease import GpuId, node_of

DAY_MS = 86_400_000
# Groups whose rows also have the time that leases did not hold.
OF_NODES = ("type", "node", "day")
_LEASE_KEYS = {"type": "worker_type", "node": "on_gpus", "day": "''"}
_NODE_KEYS = {"type": "worker_type", "node": "node", "day": "''"}
_BEGIN = "SELECT min(at_ms) FROM node"
# The plus has SQLite use the index of ends.
_HELD = """
SELECT {key}, sum(gpu_ms), sum(gpu_ms * useful_ms / held_ms), sum(gpu_ms * lost_ms / held_ms),
    sum(gpu_ms * idle_ms / held_ms), sum(gpus * max(end - max(ended_ms - shared_ms, :since), 0))
FROM (SELECT *, 1.0 * gpus * (end - max(ended_ms - held_ms, :since)) AS gpu_ms
    FROM (SELECT *, min(ended_ms, :until) AS end FROM lease WHERE ended_ms > :since AND ended_ms - held_ms < :until
        AND held_ms > 0 AND +place < :before AND (:user = '' OR user = :user)))
GROUP BY 1
"""
_ALL = """
SELECT {key}, sum(gpus * span), sum(drained * span), sum(broken * span), sum(unreachable * span)
FROM (SELECT *, end - max(at_ms, :since) AS span FROM (
    SELECT *, min(lead(at_ms, 1, :until) OVER (PARTITION BY node ORDER BY place), :until) AS end FROM node))
WHERE span > 0 AND gpus > 0 GROUP BY 1
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
    since_ms, until_ms = question.since_ms, question.until_ms
    since_ms = until_ms if begin_ms is None else min(max(since_ms, begin_ms), until_ms)
    rows: dict[str, GpuTime] = {}
    for name, first_ms, last_ms in _periods(question.by, since_ms, until_ms):
        part = question._replace(since_ms=first_ms, until_ms=last_ms)
        for group, time in _period(file, part, open_leases, before):
            _add(rows.setdefault(name or group, GpuTime()), time)
    return Answer(
        {name: rows[name] for name in sorted(rows) if rows[name].held + rows[name].all > 0}, since_ms
    )


def _periods(by: str, since_ms: int, until_ms: int) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a time that are summed separately, with their names: days, or all of it without a name."""
    if since_ms >= until_ms:
        return
    if by != "day":
        yield "", since_ms, until_ms
        return
    midnights = range((since_ms // DAY_MS + 1) * DAY_MS, until_ms, DAY_MS)
    for first_ms, last_ms in pairwise((since_ms, *midnights, until_ms)):
        yield day_name(first_ms), first_ms, last_ms


def day_name(at_ms: int) -> str:
    """Return the day, in UTC, as 2030-01-31."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _period(
    file: HistoryFile, question: Question, open_leases: Iterable[OpenTime], before: int
) -> Iterator[tuple[str, GpuTime]]:
    """Yield the time of groups, some of them repeatedly."""
    by = question.by
    values = {"since": question.since_ms, "until": question.until_ms, "user": question.user, "before": before}
    rows = list[Any]()
    file.read_long(_HELD.format(key=_LEASE_KEYS.get(by, by)), values, rows.extend)
    for key, held, useful, lost, idle, shared in rows:
        time = GpuTime(held, useful, lost, idle, shared)
        yield from _by_node(unpacked_gpus(key), time) if by == "node" else ((key, time),)
    for lease in open_leases:
        time_of_open = _open_time(lease, question)
        if time_of_open is not None:
            key = getattr(lease, "worker_type" if by == "type" else by, "")
            yield from _by_node(lease.gpus, time_of_open) if by == "node" else ((key, time_of_open),)
    if by in OF_NODES and not question.user:
        rows.clear()
        file.read_long(_ALL.format(key=_NODE_KEYS[by]), values, rows.extend)
        for key, total, drained, broken, unreachable in rows:
            yield key, GpuTime(all=total, drained=drained, broken=broken, unreachable=unreachable)


def _open_time(lease: OpenTime, question: Question) -> GpuTime | None:
    """Return the part of a lease's time that the question is about; None if there is none."""
    begin_ms, end_ms = max(lease.begin_ms, question.since_ms), min(lease.end_ms, question.until_ms)
    if begin_ms >= end_ms or question.user not in ("", lease.user):
        return None
    gpus = len(lease.gpus)
    held = gpus * (end_ms - begin_ms)
    each = held / (lease.end_ms - lease.begin_ms)
    shared = gpus * max(end_ms - max(lease.end_ms - lease.shared_ms, begin_ms), 0)
    return GpuTime(held, lease.useful_ms * each, lease.lost_ms * each, lease.idle_ms * each, shared)


def _by_node(gpus: Sequence[GpuId], time: GpuTime) -> Iterator[tuple[str, GpuTime]]:
    """Divide the time of a lease among its nodes, by their GPUs."""
    for node, count in Counter(map(node_of, gpus)).items():
        part = count / len(gpus)
        yield node, GpuTime(*[value * part for value in msgspec.structs.astuple(time)])


def _add(total: GpuTime, time: GpuTime) -> None:
    for name in GpuTime.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(time, name))
