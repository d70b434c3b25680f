"""The scene of an explanation: the current GPUs of each worker type, and the ways to run the job.

To be fast, it makes one pass over nodes and leases, and reads the share table only as arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np

from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.pairing import ESTIMATED, packed_rate
from scheduler.core.planning.round_inputs import kept_until_s
from scheduler.core.state import SchedulerState, Stores
from scheduler.explain.answer import Holder, Way
from scheduler.explain.forecast import ends_s
from scheduler.model.cluster import Node, NodeState, gpus_for, in_groups
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle, Holding, Phase, node_of, nodes_of
from scheduler.rounds.resources import times

SHOWN_HOLDERS_MAX = 5
SHOWN_WAYS_MAX = 16


@dataclass(slots=True)
class Pool:
    """The GPUs of one worker type."""

    worker_type: str
    # GPUs that are usable now.
    total: int = 0
    # Usable GPUs that are neither held nor promised.
    free: int = 0
    # Free GPUs on nodes that reach the job's last checkpoint.
    free_in_reach: int = 0
    # GPUs that the job could use in some way if there were no other jobs; and by node, whether or not they form groups.
    fitting: int = 0
    fitting_on: dict[str, int] = field(default_factory=dict)
    # Free GPUs that the job could use in some way; and by node, whether or not they form groups.
    room: int = 0
    room_on: dict[str, int] = field(default_factory=dict)
    # GPUs that would suit the job, but whose nodes do not reach its last checkpoint.
    out_of_reach: int = 0
    # The largest number of usable GPUs on one node.
    widest_node: int = 0
    holdings: list[Holding] = field(default_factory=list)
    # Nodes that take no new jobs now: draining, silent, lost or faulty.
    away: list[Node] = field(default_factory=list)
    # The jobs that hold GPUs here, with their numbers of GPUs.
    holders: dict[str, int] = field(default_factory=dict)

    def others(self, scene: Scene, limit: int) -> tuple[list[str], int]:
        """Return up to `limit` other jobs that hold GPUs here, in order of arrival, and the number of all of them."""
        names = [name for name in self.holders if name != scene.job.id]
        return nsmallest(limit, names, key=lambda name: scene.state.jobs[name].order), len(names)


@dataclass(frozen=True, slots=True)
class Column:
    """A way to run the job. `row`: its row in the share table; None if the table lacks it."""

    bundle: Bundle
    rate: float
    guessed: bool
    row: int | None
    share: float = 0.0
    entitled_s: float = 0.0
    received_s: float = 0.0
    backfill: bool = False


class Scene:
    """A job among the nodes, leases and shares of a state."""

    def __init__(self, state: SchedulerState, job: Job, now_s: float) -> None:
        self.state, self.job, self.now_s = state, job, now_s
        # The stores to which the job's last checkpoint confines the job. If there are none, it can run on every node.
        self.stores = state.confined_to(job)
        self.pools = _pools(state, job, self.stores)
        self.columns = _columns(state, job, self.pools, now_s)

    @property
    def is_newcomer(self) -> bool:
        """Whether the job came after the allocation in force."""
        allocation = self.state.allocation
        return allocation is None or self.job.id not in allocation.shares.jobs

    def suits(self, node: Node) -> bool:
        """Whether the job could use this node if the node is up, given the job's last checkpoint and needs."""
        return (not self.stores or node.spec.store in self.stores) and node.fits(self.job.spec)

    def granule(self, worker_type: str, gpus: int) -> int:
        """Return how many of these GPUs must be together on one node."""
        return self.job.spec.granule(gpus, worker_type)

    def together(self, worker_type: str, gpus: int) -> str:
        """Describe how many of these GPUs must be on one node; empty if each may be on its own."""
        granule = self.granule(worker_type, gpus)
        if granule == 1:
            return ""
        return " on one node" if granule == gpus else f" in groups of {granule}, each on one node"

    def room(self, bundle: Bundle) -> int:
        """Return the number of free GPUs that the job could use to run in this way."""
        granule = self.granule(bundle.worker_type, bundle.gpus)
        return in_groups(self.pools[bundle.worker_type].room_on.values(), granule)

    def possible(self, column: Column) -> bool:
        """Whether the job could run in this way if there were no other jobs."""
        worker_type, gpus = column.bundle.worker_type, column.bundle.gpus
        pool = self.pools.get(worker_type)
        if column.rate <= 0 or pool is None:
            return False
        if in_groups(pool.fitting_on.values(), self.granule(worker_type, gpus)) < gpus:
            return False
        return all(
            name in self.state.active and self.state.eligible(self.state.active[name], self.now_s)
            for name in column.bundle.jobs
        )

    def reserved(self, worker_type: str) -> Bundle | None:
        """Return the gang for which GPUs of a type are held back, if it still waits for them."""
        bundle = self.state.round.reserved.get(worker_type)
        if bundle is None:
            return None
        waits = (
            (job := self.state.active.get(name)) is not None and job.lease is None for name in bundle.jobs
        )
        return bundle if all(waits) else None

    def evidence(self) -> tuple[Way, ...]:
        """Return the ways to run the job, the most important ones first."""
        allocation = self.state.allocation
        prices: dict[str, float | None] = {}
        if allocation is not None and allocation.shares.price:
            prices = dict(zip(allocation.shares.worker_types, allocation.shares.price, strict=False))
        columns = self.columns[:SHOWN_WAYS_MAX]
        types = dict.fromkeys(column.bundle.worker_type for column in columns)
        holders = {kind: self.shown_holders(kind) for kind in types}
        return tuple([self._way(column, prices, holders) for column in columns])

    def _way(
        self, column: Column, prices: dict[str, float | None], holders: dict[str, tuple[Holder, ...]]
    ) -> Way:
        bundle = column.bundle
        kind = bundle.worker_type
        pool = self.pools.get(kind) or Pool(kind)
        price = prices.get(kind)
        reserved = self.reserved(kind)
        return Way(
            worker_type=kind,
            gpus=bundle.gpus,
            label=bundle.label,
            with_job=next((name for name in bundle.jobs if name != self.job.id), ""),
            rate=column.rate,
            guessed=column.guessed,
            share=column.share,
            entitled_s=column.entitled_s,
            received_s=column.received_s,
            backfill=column.backfill,
            price_per_gpu=price if price is not None and math.isfinite(price) else None,
            gpus_total=pool.total,
            gpus_free=pool.free,
            gpus_fitting=pool.room,
            held_by=holders[kind],
            holders=len(pool.holders),
            reserved_for="" if reserved is None else " ".join(reserved.jobs),
        )

    def shown_holders(self, worker_type: str) -> tuple[Holder, ...]:
        """Return some of the holders of a worker type's GPUs, the widest first."""
        pool = self.pools.get(worker_type)
        if pool is None:
            return ()
        state = self.state
        holders: list[Holder] = []
        # Among equally wide leases, the oldest come first.
        for holding in nsmallest(SHOWN_HOLDERS_MAX, pool.holdings, key=_narrowness):
            if any(holder.job == holding.lease.job for holder in holders):
                # The job has two leases on this worker type: one that is ending, and the next one.
                continue
            job = state.jobs[holding.lease.job]
            stopping = holding.phase == Phase.STOPPING
            kept_s = kept_until_s(state, holding)
            holders.append(
                Holder(
                    job=job.id,
                    gpus=holding.bundle.gpus,
                    until_s=release_s(state, holding, self.now_s)
                    if stopping
                    else ends_s(state, job, self.now_s),
                    kept_until_s=kept_s if self.now_s < kept_s < math.inf and not stopping else None,
                    preemptible=job.spec.preemptible,
                    stopping=stopping,
                )
            )
        return tuple(holders)


def _narrowness(holding: Holding) -> int:
    return -holding.bundle.gpus


def release_s(state: SchedulerState, holding: Holding, now_s: float) -> float:
    """Return when an ending lease frees its GPUs: at its end or, if its end has passed, when the lease lapses."""
    at_s = state.lease_end_s(holding)
    if at_s <= now_s and holding.stop_by_s is not None:
        at_s = holding.stop_by_s
    return max(at_s, now_s)


def _pools(state: SchedulerState, job: Job, stores: Stores) -> dict[str, Pool]:
    """Return the GPUs of every worker type, by type. `stores`: the stores that the job's nodes must reach, if any."""
    spec = job.spec
    picky = bool(stores or spec.nodes or spec.labels or spec.cpus or spec.memory_gb or spec.gpu_memory_gb)
    picky |= bool(state.left_out(spec))
    used = _used(state) if spec.cpus or spec.memory_gb else {}
    busy = state.holders.keys() | state.claims.keys()
    pools: dict[str, Pool] = {}
    for name, node in sorted(state.nodes.items()):
        kind = node.spec.worker_type
        pool = pools.get(kind)
        if pool is None:
            pool = pools[kind] = Pool(kind)
        if node.state != NodeState.UP:
            pool.away.append(node)
            continue
        gpus = node.gpu_ids if node.broken or node.withheld else state.gpus_of[name]
        free = len(gpus) - sum(map(busy.__contains__, gpus))
        pool.total += len(gpus)
        pool.free += free
        pool.widest_node = max(pool.widest_node, len(gpus))
        if stores and node.spec.store not in stores:
            pool.out_of_reach += in_groups([gpus_for(node, spec)], spec.least_granule(kind))
            continue
        pool.free_in_reach += free
        pool.fitting_on[name] = gpus_for(node, spec) if picky else len(gpus)
        pool.room_on[name] = _room(node, job, free, used.get(name, (0.0, 0.0))) if picky else free
    by_type: dict[str, list[Holding]] = {kind: [] for kind in pools}
    for holding in state.leases.values():
        by_type[holding.bundle.worker_type].append(holding)
    for kind, pool in pools.items():
        granule = spec.least_granule(kind)
        pool.fitting = in_groups(pool.fitting_on.values(), granule)
        pool.room = in_groups(pool.room_on.values(), granule)
        pool.holdings = [h for h in by_type[kind] if _any_up(state, h)] if pool.away else by_type[kind]
        pool.holders = {holding.lease.job: holding.bundle.gpus for holding in pool.holdings}
    return pools


def _any_up(state: SchedulerState, holding: Holding) -> bool:
    return any(state.nodes[name].state == NodeState.UP for name in nodes_of(holding.lease.gpus))


def _used(state: SchedulerState) -> dict[str, tuple[float, float]]:
    """Return the CPUs and memory in use, by node."""
    used: dict[str, tuple[float, float]] = {}
    for holding in state.leases.values():
        spec = state.jobs[holding.lease.job].spec
        if holding.phase == Phase.STOPPING or not (spec.cpus or spec.memory_gb):
            continue
        for gpu in holding.lease.gpus:
            cpus, memory_gb = used.get(node_of(gpu), (0.0, 0.0))
            used[node_of(gpu)] = (cpus + spec.cpus / spec.gpus, memory_gb + spec.memory_gb / spec.gpus)
    return used


def _room(node: Node, job: Job, free: int, used: tuple[float, float]) -> int:
    """Return how many of a node's free GPUs the job could use, given the CPUs and memory in use there."""
    spec = job.spec
    if not node.fits(spec):
        return 0
    for have, in_use, each in (
        (node.spec.cpus, used[0], spec.cpus / spec.gpus),
        (node.spec.memory_gb, used[1], spec.memory_gb / spec.gpus),
    ):
        if have is not None and each > 0:
            free = times(have - in_use, each, free)
    return free


def _columns(state: SchedulerState, job: Job, pools: dict[str, Pool], now_s: float) -> list[Column]:
    """Return the job's columns in the share table, and further columns that rates and nodes allow."""
    spec, table = job.spec, state.shares
    may_fill = state.allocation is None or bool(table.backfill.all())
    columns: dict[Bundle, Column] = {}
    # After a change of its GPUs or worker types, the job's columns in the table are void.
    is_reshaped = job.id in state.reshaped
    own_row = None if is_reshaped else table.job_row.get(job.id)
    if own_row is not None:
        for row in np.flatnonzero((table.first == own_row) | (table.second == own_row)).tolist():
            bundle = table.bundles[row]
            if all(name in state.active for name in bundle.jobs):
                rate, guessed = rate_in(state, job, bundle, pools)
                share = float(table.share[row])
                entitled_s, received_s = _until_now(state, bundle, now_s, row)
                columns[bundle] = Column(
                    *(bundle, rate, guessed, row, share, entitled_s, received_s),
                    bool(table.backfill[row]),
                )
    for kind, pool in sorted(pools.items()):
        if spec.may_use(kind):
            for gpus in spec.widths_on(kind, pool.fitting):
                plan = spec.plan_for(kind, gpus)
                bundle = Bundle((job.id,), kind, gpus, plan.label if plan else "")
                rate, guessed = rate_in(state, job, bundle, pools)
                if rate > 0 and bundle not in columns:
                    fills = may_fill and own_row is None and not is_reshaped and gpus == spec.gpus
                    columns[bundle] = Column(bundle, rate, guessed, None, backfill=fills)
    return sorted(columns.values(), key=lambda c: (-c.share, -c.rate, c.bundle))


def _until_now(state: SchedulerState, bundle: Bundle, now_s: float, row: int) -> tuple[float, float]:
    """Return the time that a column was due and the time that it received, both until now."""
    # In the table, both times already include the rest of the round, so this rest is subtracted.
    table = state.shares
    ahead_s = max(state.round.ends_s - max(now_s, state.round.starts_s), 0.0)
    entitled_s = float(table.entitled_s[row]) - float(table.share[row]) * ahead_s
    credited_until_s = [
        holding.credit_s
        for name in bundle.jobs
        if (holding := state.leases.get(state.jobs[name].lease or "")) is not None
        and holding.bundle == bundle
    ]
    unused_s = max(max(credited_until_s, default=0.0) - max(now_s, state.round.starts_s), 0.0)
    return max(entitled_s, 0.0), max(float(table.received_s[row]) - unused_s, 0.0)


def rate_in(state: SchedulerState, job: Job, bundle: Bundle, pools: dict[str, Pool]) -> tuple[float, bool]:
    """Return the rate of the job in a bundle, in steps per second, and whether the rate is a guess."""
    if len(bundle.jobs) > 1:
        beside = packed_rate(state, bundle, job.id)
        return (0.0, False) if beside is None else (beside.rate, beside.source == ESTIMATED)
    pool = pools.get(bundle.worker_type)
    widest = pool.widest_node if pool is not None else bundle.gpus
    spread = not state.settings.consolidated_rates and bundle.gpus > widest
    return rate_of(state, job.spec, bundle.worker_type, bundle.gpus, spread)
