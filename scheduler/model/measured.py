"""Values that jobs have measured about themselves: a restart, a save, and how many loader workers help.

Values of a job count for itself, and as one of the last `POOL` of its kind for jobs of the same user, type, number of
GPUs and worker type that have none yet: their median counts, so that a single job with wrong values changes little. A
job can hurt only itself by them: every time is clamped to `TIME_MAX_S`, workers to `WORKERS_MAX` and by agents to the
CPUs of the node, and no entitlement depends on them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from scheduler.model.jobs import Job

# The keys that the scheduler keeps, by what `measured` in progress-RANK.json (docs/job-directory.md) means by them, and
# how the values of the nodes of a gang become one; `start_s` is measured by the agents.
MERGE: dict[str, Callable[[Iterable[float]], float]] = {
    **dict.fromkeys(("step_s", "stall_s", "durable_s", "final_save_s", "load_s", "start_s"), max),
    **dict.fromkeys(
        ("interval", "overhead", "loss_s", "wait", "fetch", "prep", "sample_bytes", "workers"), max
    ),
    **dict.fromkeys(("gpu_rate", "prep_rate", "storage_rate", "cache_rate", "cached"), min),
    **dict.fromkeys(("bytes", "sent_bytes"), sum),
}
# How a loop loads its data. These values belong to the GPUs where they were measured, and to one node.
LOADING = frozenset(
    ("wait", "fetch", "prep", "workers", "gpu_rate", "prep_rate", "storage_rate", "cache_rate", "cached")
)
# Values are kept in steps of this part, so that journals stay small.
STEP = 0.05
# Smaller values count as 0, and larger ones are refused.
VALUE_MIN, VALUE_MAX = 1e-9, 1e18
# The most seconds that decisions make of any of these times.
TIME_MAX_S = 600.0
# The most loader workers of a rank.
WORKERS_MAX = 1024
# How many jobs a pool has.
POOL = 9
# Agents kill a job so long after they asked it to save, unless its lease grants it more time.
USUAL_SAVE_S = 25.0
# A job gets so many times the length of its last saves.
SAVE_RESERVE = 1.5
# The greatest part of a round by which the time to save may be longer than usual.
EXTRA_SAVE_PART = 0.2


class PoolKey(NamedTuple):
    """Jobs that are alike, and where they ran."""

    user: str
    job_type: str
    gpus: int
    worker_type: str


def pool_key(job: Job, worker_type: str, gpus: int) -> PoolKey:
    """Return the pool in which values of a job count that runs on these GPUs."""
    return PoolKey(job.spec.user, job.spec.job_type, gpus, worker_type)


class OwnValues(msgspec.Struct, array_like=True):
    """The values of a job, and where it ran when it last measured any."""

    worker_type: str
    gpus: int
    values: dict[str, float]
    # Of a gang on several nodes: the values by node, which are merged in `values`.
    by_node: dict[str, dict[str, float]] = {}

    def is_of(self, key: PoolKey) -> bool:
        """Return whether the values were measured on as many GPUs of the same type."""
        return (self.worker_type, self.gpus) == (key.worker_type, key.gpus)

    def without_loading(self) -> OwnValues:
        """Return these values for a job that runs on other GPUs now, where it loads its data at other rates."""
        by_node = {node: _without_loading(values) for node, values in self.by_node.items()}
        return OwnValues(self.worker_type, self.gpus, _without_loading(self.values), by_node)

    def of_neediest_node(self) -> dict[str, float]:
        """Return the values, those of loading from the node of a gang that needs the most loader workers.

        The most workers of one node and the least rate of another would together seem to need more than either.
        """
        neediest = max(self.by_node.values(), key=lambda values: useful_workers(values) or 0.0, default={})
        if useful_workers(neediest) is None:
            return self.values
        loading = {key: value for key, value in neediest.items() if key in LOADING}
        return _without_loading(self.values) | loading


class MeasuredRows(msgspec.Struct, array_like=True, frozen=True):
    """A book of measured values in plain lists, as a snapshot keeps it."""

    jobs: list[tuple[str, OwnValues]] = []
    pools: list[tuple[PoolKey, list[tuple[str, dict[str, float]]]]] = []


class MeasuredBook:
    """All that jobs have measured about themselves."""

    def __init__(self, rows: MeasuredRows | None = None) -> None:
        rows = rows or MeasuredRows()
        self.jobs: dict[str, OwnValues] = dict(rows.jobs)
        # By pool: the values of its last jobs; the newest are last.
        self.pools: dict[PoolKey, dict[str, dict[str, float]]] = {key: dict(jobs) for key, jobs in rows.pools}
        # Increases whenever a time may be different.
        self.version = 0
        # By job: see `own_workers`. They follow from the values and can be dropped at any time.
        self._own_workers: dict[str, float | None] = {}

    def enter(
        self, job: str, key: PoolKey, values: Mapping[str, float], node: str = "", gang: Iterable[str] = ()
    ) -> None:
        """Enter new values of a job. Its older values under other keys stay, those of loading on the same GPUs only.

        `node` measured them, if the job runs on several nodes, `gang`.
        """
        own = self._on(job, key)
        older = own.values if own is not None else {}
        by_node = {name: own.by_node[name] for name in gang if own is not None and name in own.by_node}
        if node:
            by_node[node] = {**by_node.get(node, {}), **values}
        merged = {**older, **(_merged(by_node.values()) if node else values)}
        own = self.jobs[job] = OwnValues(key.worker_type, key.gpus, merged, by_node if node else {})
        if key.job_type:
            pool = self.pools.setdefault(key, {})
            # The job becomes the newest one.
            pool.pop(job, None)
            pool[job] = own.of_neediest_node()
            while len(pool) > POOL:
                del pool[next(iter(pool))]
        self._own_workers.pop(job, None)
        self.version += 1

    def _on(self, job: str, key: PoolKey) -> OwnValues | None:
        """Return those values of a job that count on the GPUs of this pool; None if it has none at all."""
        own = self.jobs.get(job)
        return own if own is None or own.is_of(key) else own.without_loading()

    def of(self, job: str) -> Mapping[str, float]:
        """Return the values of a job; empty if it has none."""
        own = self.jobs.get(job)
        return own.values if own is not None else {}

    def known(self, job: str, key: PoolKey, node: str = "") -> Mapping[str, float]:
        """Return the values that a job need not report again on the GPUs of this pool.

        `node`: those that this node has measured, if the job runs on several.
        """
        own = self._on(job, key)
        if own is None:
            return {}
        return own.by_node.get(node, {}) if node else own.values

    def time_s(
        self, job: str, key: PoolKey, time_of: Callable[[Mapping[str, float]], float | None]
    ) -> float | None:
        """Return a time that follows from measured values: the job's own, else the median of its pool, else None.

        Times of the job on other GPUs count as well. Saves, starts and loads depend on its model and on the storage;
        jobs of its type may have other models. Work between two checkpoints is lost, and how long that takes hardly
        depends on the GPUs, because a job with faster steps saves after more of them.
        """
        time_s = time_of(self.of(job))
        if time_s is None:
            time_s = self._pooled(key, time_of)
        return None if time_s is None else min(time_s, TIME_MAX_S)

    def workers(self, job: str, key: PoolKey) -> int:
        """Return the loader workers of a rank with which its loop would not wait for data; 0 if that is unknown.

        Faster GPUs need more of them, so what the job measured on other GPUs counts after the median of its pool.
        """
        own, workers = self.jobs.get(job), self.own_workers(job)
        if own is None or workers is None or not own.is_of(key):
            pooled = self._pooled(key, useful_workers)
            workers = workers if pooled is None else pooled
        return 0 if workers is None else whole_workers(workers)

    def own_workers(self, job: str) -> float | None:
        """Return how many loader workers of a rank help, as a job has measured it; of a gang, on its neediest node."""
        if job not in self._own_workers:
            own = self.jobs.get(job)
            if own is None:
                return None
            self._own_workers[job] = useful_workers(own.of_neediest_node())
        return self._own_workers[job]

    def _pooled(self, key: PoolKey, value_of: Callable[[Mapping[str, float]], float | None]) -> float | None:
        """Return the median of a pool; None if no job there has measured enough."""
        values = [value for each in self.pools.get(key, {}).values() if (value := value_of(each)) is not None]
        return statistics.median(values) if values else None

    def forget(self, jobs: Iterable[str], job_types: Iterable[str]) -> None:
        """Drop the values of these jobs, and the pools of these job types."""
        types = frozenset(job_types)
        for job in jobs:
            self.jobs.pop(job, None)
            self._own_workers.pop(job, None)
        self.pools = {key: pool for key, pool in self.pools.items() if key.job_type not in types}

    def rows(self) -> MeasuredRows:
        """Return this book as plain lists."""
        pools = sorted(self.pools.items())
        return MeasuredRows(sorted(self.jobs.items()), [(key, list(pool.items())) for key, pool in pools])


def _without_loading(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if key not in LOADING}


def _merged(nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge what the nodes of a gang have measured: the greatest cost, the least rate, the sum of bytes."""
    by_key: dict[str, list[float]] = {}
    for values in nodes:
        for key, value in values.items():
            by_key.setdefault(key, []).append(value)
    return {key: MERGE[key](values) for key, values in sorted(by_key.items())}


def restart_s(values: Mapping[str, float]) -> float | None:
    """Return what a restart costs: to save, to start, to load. None until a save and a start were measured."""
    if "final_save_s" not in values or "start_s" not in values:
        return None
    return values["final_save_s"] + values["start_s"] + values.get("load_s", 0.0)


def failure_s(values: Mapping[str, float]) -> float | None:
    """Return what a failure of a node costs on average: half an interval between checkpoints, and an unclean start."""
    if not {"interval", "step_s", "start_s"} <= values.keys():
        return None
    lost_s = values["interval"] * values["step_s"] / 2 + values.get("durable_s", 0.0)
    return lost_s + values["start_s"] + values.get("load_s", 0.0)


def final_save_s(values: Mapping[str, float]) -> float | None:
    """Return how long the save at the end of a lease takes."""
    return values.get("final_save_s")


def useful_workers(values: Mapping[str, float]) -> float | None:
    """Return the loader workers of a rank with which its loop would not wait: the seconds of work in a second of steps.

    The work of a step is to prepare its samples, and to read them from storage or from the cache, as far as that was
    measured. Workers that share too few CPUs take longer, so that they seem to be more than are needed.
    """
    workers, gpu_rate, prep_rate = (values.get(key, 0.0) for key in ("workers", "gpu_rate", "prep_rate"))
    if not (workers and gpu_rate and prep_rate):
        return None
    cached = min(values.get("cached", 0.0), 1.0)
    work_s = 1 / prep_rate
    for rate, part in (("storage_rate", 1 - cached), ("cache_rate", cached)):
        if values.get(rate):
            work_s += part / values[rate]
    return gpu_rate * workers * work_s


def whole_workers(workers: float) -> int:
    """Return a number of loader workers as a job can have it."""
    return math.ceil(min(workers, WORKERS_MAX))


def extra_save_s(save_s: float | None, round_s: float) -> float:
    """Return how much longer than usual a job may take to save that needs so long for it."""
    more_s = SAVE_RESERVE * (save_s or 0.0) - USUAL_SAVE_S
    return min(max(more_s, 0.0), EXTRA_SAVE_PART * round_s)


def quantised(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that the scheduler accepts, in steps of 5 %: known keys, finite, at least 0."""
    return {
        key: quantised_number(value)
        for key, value in sorted(values.items())
        if key in MERGE and 0.0 <= value <= VALUE_MAX
    }


def quantised_number(value: float) -> float:
    """Return a number in steps of 5 %."""
    if value < VALUE_MIN:
        return 0.0
    step = math.log1p(STEP)
    return float(f"{math.exp(round(math.log(value) / step) * step):.4g}")
