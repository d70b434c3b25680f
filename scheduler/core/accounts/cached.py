"""The training data in the caches of the nodes, and the data that jobs read, so that jobs go where their data is.

The data of a job is what it has named itself; before that, what the last job of the same user and type has named. What
a job claims about its data decides only among equal places, and moves no other job away from its data (`near_data.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from scheduler.model.bounds import NAME_CHARS_MAX
from scheduler.model.jobs import Job
from scheduler.model.measured import quantised_number

_KEY = re.compile(r"[0-9a-f]{32}")
# How many data sets of a node, and of a job, are kept.
OF_A_NODE_MAX, OF_A_JOB_MAX = 32, 8
BYTES_MAX = 1 << 60


class CachedData(msgspec.Struct, array_like=True, frozen=True, order=True):
    """A data set in the cache of a node."""

    # Whose jobs may use it; empty: those of several users.
    user: str
    # 32 hexadecimal digits, as jobs name it.
    key: str
    # How many bytes of it are in the cache.
    used_bytes: float


class CachedRows(msgspec.Struct, array_like=True, frozen=True):
    """A book of cached data in plain lists, as a snapshot keeps it."""

    nodes: list[tuple[str, list[CachedData]]] = []
    jobs: list[tuple[str, dict[str, float]]] = []
    # User, job type, data.
    pools: list[tuple[str, str, dict[str, float]]] = []
    # Of jobs on several nodes: what each node has named.
    gangs: list[tuple[str, dict[str, dict[str, float]]]] = []


class CachedBook:
    """All that is known of the caches of the nodes, and of the data of jobs."""

    def __init__(self, rows: CachedRows | None = None) -> None:
        rows = rows or CachedRows()
        # By node: the bytes in its cache, by user and key.
        self.nodes: dict[str, dict[tuple[str, str], float]] = {}
        # By user and key: the nodes that have any of it, so that a plan need not look at all of them for each job.
        self._holders: dict[tuple[str, str], set[str]] = {}
        for node, data in rows.nodes:
            self.enter_node(node, data)
        # By job: the sizes of the data sets that it has named, by key; 0: unknown.
        self.jobs: dict[str, dict[str, float]] = dict(rows.jobs)
        # By user and job type: the data that the last such job has named.
        self.pools: dict[tuple[str, str], dict[str, float]] = {
            (user, kind): data for user, kind, data in rows.pools
        }
        # Of jobs on several nodes: what each node has named, which is merged in `jobs`.
        self.gangs: dict[str, dict[str, dict[str, float]]] = dict(rows.gangs)

    def enter_node(self, node: str, data: Iterable[CachedData]) -> None:
        """Enter what the cache of a node holds now, and nothing else."""
        self.drop_node(node)
        held = {(entry.user, entry.key): entry.used_bytes for entry in data}
        if held:
            self.nodes[node] = held
        for name in held:
            self._holders.setdefault(name, set()).add(node)

    def drop_node(self, node: str) -> None:
        """Drop what the cache of a node held, because it is lost or has to be reported again."""
        for name in self.nodes.pop(node, {}):
            self._holders[name].remove(node)
            if not self._holders[name]:
                del self._holders[name]

    def enter_job(
        self, job: Job, data: Mapping[str, float], node: str = "", gang: Collection[str] = ()
    ) -> None:
        """Enter the data that a job has named, in place of what it named before.

        `node` named it, if the job runs on several nodes, `gang`: their ranks may read other data each.
        """
        named = dict(data)
        if node:
            parts = {name: part for name, part in self.gangs.get(job.id, {}).items() if name in gang}
            parts[node] = named
            named = _merged(parts.values())
            self.gangs[job.id] = parts
        else:
            self.gangs.pop(job.id, None)
        self.jobs[job.id] = named
        if job.spec.job_type:
            self.pools[job.spec.user, job.spec.job_type] = named

    def has_named(
        self, job: str, data: Mapping[str, float], node: str = "", gang: Collection[str] = ()
    ) -> bool:
        """Return whether `enter_job` would change nothing."""
        parts = self.gangs.get(job, {})
        if node:
            return parts.get(node) == data and all(name in gang for name in parts)
        return not parts and self.jobs.get(job) == data

    def forget(self, jobs: Iterable[str], job_types: Iterable[str]) -> None:
        """Drop the data of these jobs, and of these job types."""
        types = frozenset(job_types)
        for job in jobs:
            self.jobs.pop(job, None)
            self.gangs.pop(job, None)
        if types:
            self.pools = {key: data for key, data in self.pools.items() if key[1] not in types}

    def of_node(self, node: str) -> tuple[CachedData, ...]:
        """Return what the cache of a node holds."""
        return tuple([CachedData(*key, used) for key, used in sorted(self.nodes.get(node, {}).items())])

    def of_job(self, job: Job) -> Mapping[str, float]:
        """Return the sizes of the data sets that a job reads, by key; empty if they are unknown."""
        own = self.jobs.get(job.id)
        return own if own is not None else self.pools.get((job.spec.user, job.spec.job_type), {})

    def bytes_at(self, node: str, user: str, data: Iterable[str]) -> float:
        """Return how many bytes of these data sets a job of this user would find in the cache of a node."""
        held = self.nodes.get(node, {})
        return sum(max(held.get((user, key), 0.0), held.get(("", key), 0.0)) for key in data)

    def bytes_by_node(self, job: Job) -> dict[str, float]:
        """Return how many bytes of a job's data each node has in its cache; a node that has none is absent."""
        data, user = self.of_job(job), job.spec.user
        nodes = {node for key in data for name in (user, "") for node in self._holders.get((name, key), ())}
        return {node: self.bytes_at(node, user, data) for node in sorted(nodes)}

    def bytes_of(self, jobs: Iterable[Job]) -> dict[str, dict[str, float]]:
        """Return `bytes_by_node` of those of these jobs of which any node has data, by job. Equal jobs share theirs."""
        known: dict[tuple[str, frozenset[str]], dict[str, float]] = {}
        bytes_of: dict[str, dict[str, float]] = {}
        for job in jobs:
            data = self.of_job(job)
            if data:
                key = job.spec.user, frozenset(data)
                if key not in known:
                    known[key] = self.bytes_by_node(job)
                if known[key]:
                    bytes_of[job.id] = known[key]
        return bytes_of

    def rows(self) -> CachedRows:
        """Return this book as plain lists."""
        return CachedRows(
            [(node, list(self.of_node(node))) for node in sorted(self.nodes)],
            sorted(self.jobs.items()),
            [(user, kind, data) for (user, kind), data in sorted(self.pools.items())],
            sorted(self.gangs.items()),
        )


def _merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return all data sets that the nodes of a gang have named, each with the greatest size that any has named."""
    sizes: dict[str, float] = {}
    for part in parts:
        for key, size in part.items():
            sizes[key] = max(sizes.get(key, 0.0), size)
    return dict(sorted(sizes.items())[:OF_A_JOB_MAX])


def accepted_cache(data: Iterable[CachedData]) -> tuple[CachedData, ...]:
    """Return what the scheduler accepts of a node's report: the largest valid data sets, in steps of 5 %."""
    valid = {
        (entry.user, entry.key): CachedData(entry.user, entry.key, quantised_number(entry.used_bytes))
        for entry in data
        if _KEY.fullmatch(entry.key)
        and len(entry.user) <= NAME_CHARS_MAX
        and entry.user.isprintable()
        and 0 < entry.used_bytes <= BYTES_MAX
    }
    largest = sorted(valid.values(), key=lambda entry: (-entry.used_bytes, entry))
    return tuple(sorted(largest[:OF_A_NODE_MAX]))


def accepted_data(data: Mapping[str, float]) -> dict[str, float]:
    """Return what the scheduler accepts of the data that a job has named, in steps of 5 %."""
    valid = {
        key: quantised_number(size)
        for key, size in sorted(data.items())
        if _KEY.fullmatch(key) and 0 <= size <= BYTES_MAX
    }
    return dict([*valid.items()][:OF_A_JOB_MAX])
