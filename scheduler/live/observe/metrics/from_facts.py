"""Counters and histograms that durable records feed: jobs, leases, preemptions, answers of the solver.

`listen` is called with each record after it was applied to the state. A closed lease has left the state by then, so
the open leases are kept here, as far as the metrics need them. They begin as those of the state, so a restart of the
scheduler miscounts nothing but the time of a question to the solver that was open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scheduler.core import facts as f
from scheduler.core.state import SchedulerState
from scheduler.live.observe.metrics import catalogue as c
from scheduler.model.cluster import FAULTY, NodeState
from scheduler.model.jobs import Job, JobState, Move
from scheduler.model.lease import STOPPING, WAITING, Lease, nodes_of
from scheduler.model.settings import Settings

# Exit codes of a process that ended by SIGKILL, as Python and as shells report it.
_KILLED = (-9, 137)
_SCHEDULER, _AGENT, _USER = "scheduler", "agent", "user"


class OpenLease(msgspec.Struct):
    """A lease that has not been closed."""

    job: str
    # The preemptions and the cost of its job that have been counted.
    preemptions: int
    cost_usd: float
    # Why it has to stop: one of PREEMPTION_CAUSES.
    cause: str = c.AGENT


class FactCounters:
    """Feeds the metrics from facts: `feed.listen(FactCounters(metrics, state).listen)`."""

    def __init__(self, metrics: c.Metrics, state: SchedulerState) -> None:
        """Begin at this state, which stays the scheduler's."""
        self._metrics, self._state = metrics, state
        self._prefer_declared(state.settings)
        # The leases that have not been closed.
        self.leases: dict[str, OpenLease] = {}
        for name, holding in state.leases.items():
            self._enter(holding.lease)
            if holding.phase is STOPPING:
                self.leases[name].cause = self._why_ended(name)
        # The last question to the solver, and when it was asked.
        self._question = (0, 0.0)

    def listen(self, now_s: float, facts: Sequence[f.Fact]) -> None:
        """Count what happened in a record."""
        self._metrics.records.add()
        for fact in facts:
            handle = _HANDLERS.get(type(fact))
            if handle is not None:
                handle(self, now_s, fact)
        # No fact closes a lease that was never sent to a node.
        if len(self.leases) > len(self._state.leases):
            open_leases = {name: entry for name, entry in self.leases.items() if name in self._state.leases}
            self._metrics.leases.add(c.ENDED, amount=len(self.leases) - len(open_leases))
            self.leases = open_leases

    def _prefer_declared(self, settings: Settings) -> None:
        """Keep labels for declared tenants and for jobs without one: users may invent any number of others."""
        self._metrics.tenants.prefer(("", *[tenant.name for tenant in settings.tenants]))

    def _configured(self, now_s: float, fact: f.Configured) -> None:
        self._prefer_declared(fact.settings)

    # Jobs.

    def _submitted(self, now_s: float, fact: f.JobSubmitted) -> None:
        self._metrics.submitted.add()
        self._metrics.cost.expect((self._metrics.tenants.name(fact.spec.tenant),))

    def _moved(self, now_s: float, fact: f.JobMoved) -> None:
        self._metrics.moves.add(fact.move.value, _USER if fact.by else _SCHEDULER)

    def _started(self, now_s: float, fact: f.LeasesStarted) -> None:
        for name in fact.leases:
            entry = self.leases.get(name)
            job = None if entry is None else self._state.jobs.get(entry.job)
            if job is not None and job.started_s == now_s:
                self._metrics.queue_wait.observe(self._tenant(job), value=now_s - job.submitted_s)

    def _tenant(self, job: Job) -> str:
        return self._metrics.tenants.name(job.spec.tenant)

    # Leases.

    def _round_planned(self, now_s: float, fact: f.RoundPlanned) -> None:
        for name in fact.ended:
            self._stop(name, c.BUDGET if name in fact.spent else self._why_ended(name))
        # The leases of this round are not entered yet. Those that stop, or have yet to be sent, are not renewed.
        renewed = sum(
            holding.phase not in (STOPPING, WAITING)
            for name, holding in self._state.leases.items()
            if name in self.leases
        )
        self._metrics.leases.add(c.RENEWED, amount=renewed)
        self._granted(now_s, fact)

    def _granted(self, now_s: float, fact: f.RoundPlanned | f.GpusFilled) -> None:
        self._metrics.leases.add(c.GRANTED, amount=len(fact.granted))
        for lease in fact.granted:
            self._enter(lease)
            holding = self._state.leases.get(lease.id)
            if holding is not None and holding.before is not None:
                self._metrics.moves.add(Move.START.value, _SCHEDULER)

    def _enter(self, lease: Lease) -> None:
        job = self._state.jobs.get(lease.job)
        counted = (0, 0.0) if job is None else (job.preemptions, job.cost_usd)
        self.leases[lease.id] = OpenLease(lease.job, *counted)

    def _why_ended(self, name: str) -> str:
        holding = self._state.leases.get(name)
        states = set() if holding is None else self._node_states(holding.lease)
        if NodeState.DRAINING in states:
            return c.DRAIN
        return c.FAULT if FAULTY in states else c.TURN

    def _node_states(self, lease: Lease) -> set[NodeState]:
        nodes = self._state.nodes
        return {nodes[name].state for name in nodes_of(lease.gpus) if name in nodes}

    def _recalled(self, now_s: float, fact: f.LeaseRecalled) -> None:
        self._stop(fact.lease, c.RECALL)

    def _stop(self, name: str, cause: str) -> None:
        entry = self.leases.get(name)
        if entry is not None:
            entry.cause = cause

    def _resumed(self, now_s: float, fact: f.LeasesResumed) -> None:
        for name in fact.leases:
            self._stop(name, c.AGENT)

    def _closed(self, now_s: float, fact: f.LeaseClosed) -> None:
        end, entry = fact.exit, self.leases.pop(fact.exit.lease, None)
        if entry is None:
            return
        self._metrics.leases.add(c.ENDED)
        job = self._state.jobs.get(entry.job)
        if job is None:
            return
        if end.outcome == "yielded" and end.ran_s:
            how = c.KILLED if end.code in _KILLED else c.SIGNALLED if end.code else c.SAVED
            self._metrics.stops.add(how)
        if end.outcome == "finished" and job.state is JobState.COMPLETED and job.ended_s == now_s:
            self._metrics.moves.add(Move.COMPLETE.value, _AGENT)
            self._metrics.completion.observe(self._tenant(job), value=now_s - job.submitted_s)
        elif job.state is JobState.PREEMPTED and end.outcome in ("yielded", "node_failed"):
            self._metrics.moves.add(Move.PREEMPT.value, _SCHEDULER)
        self._metrics.preemptions.add(entry.cause, amount=job.preemptions - entry.preemptions)
        self._metrics.cost.add(self._tenant(job), amount=job.cost_usd - entry.cost_usd)
        following = self.leases.get(job.lease or "")
        if following is not None:
            following.preemptions, following.cost_usd = job.preemptions, job.cost_usd

    # Answers of the solver.

    def _asked_solver(self, now_s: float, fact: f.AllocationAsked) -> None:
        self._question = (fact.number, now_s)

    def _adopted(self, now_s: float, fact: f.AllocationAdopted) -> None:
        number, asked_s = self._question
        if fact.number == number:
            policy = self._metrics.policies.name(fact.policy)
            self._metrics.solves.observe(policy, value=now_s - asked_s)
        if fact.failed:
            self._metrics.solves_failed.add(c.FELL_BACK)

    def _not_answered(self, now_s: float, fact: f.AllocationFailed) -> None:
        self._metrics.solves_failed.add(c.NO_ANSWER)


_HANDLERS: dict[type[f.Fact], Callable[[FactCounters, float, Any], None]] = {
    f.Configured: FactCounters._configured,
    f.JobSubmitted: FactCounters._submitted,
    f.JobMoved: FactCounters._moved,
    f.LeasesStarted: FactCounters._started,
    f.RoundPlanned: FactCounters._round_planned,
    f.GpusFilled: FactCounters._granted,
    f.LeaseRecalled: FactCounters._recalled,
    f.LeasesResumed: FactCounters._resumed,
    f.LeaseClosed: FactCounters._closed,
    f.AllocationAsked: FactCounters._asked_solver,
    f.AllocationAdopted: FactCounters._adopted,
    f.AllocationFailed: FactCounters._not_answered,
}
