"""Gauges of the state: jobs, GPUs, nodes, shares, waiting. `update` is called every few seconds, not by scrapes.

An update passes once over nodes and leases, and over waiting jobs only until it knows enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scheduler.core.messages import Shares
from scheduler.core.planning.kinds import rate_of
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.live.observe.ledger import gpus_by_tenant
from scheduler.live.observe.metrics import catalogue as c
from scheduler.live.observe.metrics.families import Labels
from scheduler.live.observe.metrics.quotas import quota_series
from scheduler.model.cluster import Node, NodeState
from scheduler.model.jobs import WAITING, Job, JobState

# The state of a node's GPUs that are neither held nor broken.
_IDLE_STATES = {
    NodeState.UP: c.FREE,
    NodeState.DRAINING: c.DRAINED,
    NodeState.SILENT: c.UNREACHABLE,
    NodeState.LOST: c.UNREACHABLE,
    NodeState.FAULTY: c.FAULTY,
}


class StateGauges:
    """Sets the gauges that describe the state."""

    def __init__(self, metrics: c.Metrics, state: SchedulerState, job_states: Mapping[JobState, int]) -> None:
        """`job_states`: how many jobs are in each state, kept up to date by its owner."""
        self._metrics, self._state, self._job_states = metrics, state, job_states
        # The allocation whose shares the gauges show.
        self._allocation: int | None = None
        # The last explanation: of which job, in which round and under which allocation, and the reason.
        self._explained: tuple[tuple[str, int, int | None], str] = (("", 0, None), "")

    def update(self, now_s: float) -> None:
        """Set all gauges."""
        metrics, state = self._metrics, self._state
        metrics.epoch.set(state.epoch)
        metrics.round.set(state.round.number)
        metrics.jobs.set_all({(kind.value,): self._job_states.get(kind, 0) for kind in JobState})
        free = self._set_gpus()
        self._set_idle_held()
        self._set_shares(now_s)
        metrics.quota.set_all(quota_series(state, now_s, metrics.tenants.name))
        self._set_waiting(now_s, free)

    def _set_gpus(self) -> dict[str, int]:
        """Set the gauges of GPUs and nodes. Return how many GPUs of each worker type are free."""
        gpus, nodes, free = Counter[Labels](), Counter[Labels](), Counter[str]()
        name = self._metrics.worker_types.name
        for node in self._state.nodes.values():
            kind = node.spec.worker_type
            nodes[name(kind), node.state.value] += 1
            for state, count in self._states_of(node):
                gpus[name(kind), state] += count
                if state == c.FREE:
                    free[kind] += count
        for kind, bundle in self._state.round.reserved.items():
            if free[kind] and all(self._waits(job) for job in bundle.jobs):
                reserved = min(free[kind], bundle.gpus)
                free[kind] -= reserved
                gpus[name(kind), c.FREE] -= reserved
                gpus[name(kind), c.RESERVED] += reserved
        self._metrics.gpus.set_all(gpus)
        self._metrics.nodes.set_all(nodes)
        return {kind: count for kind, count in free.items() if count}

    def _set_idle_held(self) -> None:
        """Set the gauge of GPUs whose jobs leave them idle. If two jobs hold a GPU, both must."""
        state, name = self._state, self._metrics.worker_types.name
        gpus = Counter[Labels]({(name(node.spec.worker_type),): 0 for node in state.nodes.values()})
        idle = {lease: holding for lease, holding in state.leases.items() if holding.idle_began_s is not None}
        for lease, holding in idle.items():
            for gpu in holding.lease.gpus:
                holders = state.holders.get(gpu, ())
                # Count a GPU with its first holder.
                if holders[:1] == (lease,) and all(other in idle for other in holders):
                    gpus[name(holding.bundle.worker_type),] += 1
        self._metrics.idle_held.set_all(gpus)

    def _states_of(self, node: Node) -> tuple[tuple[str, int], ...]:
        """Return how many GPUs of a node are in each state."""
        holders, every_gpu = self._state.holders, self._state.gpus_of[node.spec.name]
        held = sum(map(holders.__contains__, every_gpu))
        unusable = node.broken | node.withheld
        broken = sum(every_gpu[index] not in holders for index in unusable if index < len(every_gpu))
        idle = len(every_gpu) - held - broken
        return (c.HELD, held), (c.BROKEN, broken), (_IDLE_STATES[node.state], idle)

    def _waits(self, job: str) -> bool:
        active = self._state.active.get(job)
        return active is not None and active.lease is None

    def _set_waiting(self, now_s: float, free: Mapping[str, int]) -> None:
        """Set the longest wait, and the free GPUs that a waiting job could use at once."""
        oldest: Job | None = None
        # Worker types with free GPUs for which no waiting job was seen yet.
        unwanted = set(free)
        beyond_budget = frozenset(self._state.asked.beyond)
        for job in self._state.active.values():
            if oldest is not None and not unwanted:
                break
            if job.state not in WAITING or job.leaving is not None or not self._state.eligible(job, now_s):
                continue
            # Jobs are in the order of their submission.
            if oldest is None and job.started_s is None:
                oldest = job
            if unwanted and job.id not in beyond_budget:
                unwanted -= {kind for kind in unwanted if self._could_use(job, kind, free[kind])}
        idle = sum(count for kind, count in free.items() if kind not in unwanted)
        self._metrics.idle_with_queue.set(idle)
        waits_s: dict[Labels, float] = {}
        if oldest is not None:
            waits_s[self._why(oldest, now_s),] = now_s - oldest.submitted_s
        self._metrics.oldest_wait.set_all(waits_s)

    def _why(self, job: Job, now_s: float) -> str:
        """Return why a job waits. An explanation takes long, so there is one for each job, round and allocation."""
        question = job.id, self._state.round.number, self._allocation
        if self._explained[0] != question:
            self._explained = question, explain(self._state, job.id, now_s).reason.value
        return self._explained[1]

    def _could_use(self, job: Job, kind: str, free: int) -> bool:
        """Whether a job could run on the free GPUs of a type, wherever they are; False for choosy jobs, to be quick."""
        spec = job.spec
        is_choosy = spec.nodes or spec.labels or spec.cpus or spec.memory_gb or spec.gpu_memory_gb
        return (
            spec.narrowest <= free
            and not is_choosy
            and spec.may_use(kind)
            and rate_of(self._state, spec, kind, spec.narrowest)[0] > 0
        )

    def _set_shares(self, now_s: float) -> None:
        metrics, state, fact = self._metrics, self._state, self._state.allocation
        is_outdated = bool(state.active) and (state.stale or not state.asked.answered)
        if fact is not None:
            metrics.allocation_age.set(now_s - state.adopted_s if is_outdated else 0.0)
            # Once all jobs have ended, nothing is due, and there is no newer allocation that would say so.
            number = fact.number if state.active else None
            if number != self._allocation:
                self._allocation = number
                metrics.share_due.set_all({} if number is None else self._due(fact.shares))
                prices = zip(fact.shares.worker_types, fact.shares.price, strict=False)
                name = metrics.worker_types.name
                metrics.price.set_all({(name(kind),): price for kind, price in prices if price is not None})
        # A tenant that holds nothing of what it is due has a series, too.
        held = dict.fromkeys(metrics.share_due.values, 0.0)
        for holding in state.leases.values():
            if holding.started_s is not None:
                tenant = state.jobs[holding.lease.job].spec.tenant
                labels = self._labels(tenant, holding.bundle.worker_type)
                held[labels] = held.get(labels, 0.0) + holding.bundle.gpus
        metrics.share_received.set_all(held)

    def _due(self, shares: Shares) -> dict[Labels, float]:
        """Return the GPUs that shares give to each tenant by worker type."""
        jobs, due = self._state.jobs, dict[Labels, float]()
        tenants = [jobs[job].spec.tenant if job in jobs else "" for job in shares.jobs]
        for tenant, by_type in gpus_by_tenant(shares, tenants).items():
            for kind, gpus in by_type.items():
                labels = self._labels(tenant, kind)
                due[labels] = due.get(labels, 0.0) + gpus
        return due

    def _labels(self, tenant: str, kind: str) -> Labels:
        return self._metrics.tenants.name(tenant), self._metrics.worker_types.name(kind)
