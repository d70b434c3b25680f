"""Measurements of a run. They use only the run's facts, so that the same code measures a live journal.

Rules:
- nothing here depends on whether the facts were simulated, and the scheduler reads nothing from here;
- `measure` restricts the figures of jobs to a range of submission numbers; GPU time counts for all jobs, from the
  submission of the first measured job to the end of the last one;
- a job's time in an equal slice is added up lease by lease: steps gained × the mean time of a step in the slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduler.core import facts as f
from scheduler.model.jobs import RUNS, JobSpec, JobState, Move
from scheduler.model.lease import GpuId
from scheduler.model.settings import Settings
from scheduler.sim.figures.fair_shares import IsolatedPace, PromisedTime
from scheduler.sim.figures.gpu_time import GpuTime, Tenure
from scheduler.sim.figures.job_table import JobTable

# The most leases that are kept for the picture of the jobs on each GPU.
STRETCHES_MAX = 20_000
# In place of a row: the job is not measured.
UNMEASURED = -1

_END_STATE = {Move.COMPLETE: JobState.COMPLETED, Move.FAIL: JobState.FAILED, Move.CANCEL: JobState.CANCELLED}
_NEXT_STATE = {
    Move.START: JobState.RUNNING,
    Move.PREEMPT: JobState.PREEMPTED,
    Move.HOLD: JobState.HELD,
    **dict.fromkeys((Move.RELEASE, Move.RETRY, Move.REQUEUE), JobState.QUEUED),
}


class Stretch(NamedTuple):
    """A job on its GPUs, from the start of a lease to its end."""

    job: str
    worker_type: str
    gpus: tuple[GpuId, ...]
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class _OpenJob:
    """A job that has not ended, or that still has processes."""

    id: str
    spec: JobSpec
    row: int
    arrival_s: float
    # The mark of `IsolatedPace` at arrival.
    mark: float
    state: JobState = JobState.QUEUED
    ended: bool = False
    start_s: float = math.nan
    # The most steps ever reported, so that repeated work counts once.
    steps: float = 0.0
    # Totals of the closed leases: the time on GPUs, the time without steps, the time of the work in an equal slice, …
    held_s: float = 0.0
    restart_s: float = 0.0
    isolated_s: float = 0.0
    cost_usd: float = 0.0
    preemptions: int = 0
    # The time on GPUs by number of the worker type.
    received_s: dict[int, float] = field(default_factory=dict)
    # Leases that are granted and not closed; how many of them have processes; whether a lease was ever granted.
    leases: dict[str, _HeldLease] = field(default_factory=dict)
    running: int = 0
    granted: bool = False


class _HeldLease(Tenure, kw_only=True, eq=False):
    """A lease that was granted."""

    job: _OpenJob
    # The GPUs in order of rank.
    ranks: tuple[GpuId, ...]
    # Whether the lease has processes.
    running: bool = False
    started_s: float = math.nan
    # The mark of `IsolatedPace` at the start.
    mark: float = 0.0


class GpuTotals(NamedTuple):
    """The GPU-seconds up to a time, by worker type: in use, and available."""

    at_s: float
    busy_s: tuple[float, ...]
    capacity_s: tuple[float, ...]


class Metrics:
    """Measurements of the facts observed so far. `summary.summarise` computes the figures from them."""

    def __init__(self, measure: tuple[int, int] | None = None) -> None:
        self.measure = measure
        self.now_s = 0.0
        self.submitted = 0
        self.rounds = 0
        self.settings: Settings | None = None
        # GPUs by type of all nodes that ever joined.
        self.cluster: dict[str, int] = {}
        self.gpus = GpuTime()
        self.jobs = JobTable(self.gpus.worker_types, measure[0] if measure else 0)
        self.stretches: list[Stretch] = []
        # The totals when the first measured job arrived, the totals when the last one so far ended, and how many ended.
        self.at_first_arrival: GpuTotals | None = None
        self.at_last_end: GpuTotals | None = None
        self.ended = 0
        # How often the policy gave no usable answer, and why it did not the first time.
        self.fallbacks = 0
        self.fallback_why = ""
        # By node that ever joined: its worker type and its number of GPUs.
        self._nodes: dict[str, tuple[str, int]] = {}
        self._open: dict[str, _OpenJob] = {}
        self._leases: dict[str, _HeldLease] = {}
        # The number of jobs that have not ended, and of jobs with processes.
        self._live = self._running = 0
        self._pace = IsolatedPace()
        self._promised = PromisedTime(self.gpus.kind)
        self._adopted: f.AllocationAdopted | None = None
        self._adopted_rate: dict[str, float] | None = None
        self._handlers: dict[type[f.Fact], Callable[[float, Any], None]] = {
            f.Configured: self._configured,
            f.RatesGiven: self._rates_given,
            f.PricesSet: self._prices_set,
            f.JobSubmitted: self._job_submitted,
            f.JobMoved: self._job_moved,
            f.NodeJoined: self._node_joined,
            f.NodeMoved: self._node_moved,
            f.NodeRemoved: self._node_removed,
            f.GpusBroken: self._gpus_broken,
            f.AllocationAdopted: self._allocation_adopted,
            f.AllocationFailed: self._allocation_failed,
            f.RoundPlanned: self._round_planned,
            f.GpusFilled: self._leases_granted,
            f.LeasesStarted: self._leases_started,
            f.LeaseClosed: self._lease_closed,
        }

    def observe(self, now_s: float, fact: f.Fact) -> None:
        """Observe one fact. Times must not decrease."""
        self.observe_all(now_s, (fact,))

    def observe_all(self, now_s: float, facts: Iterable[f.Fact]) -> None:
        """Observe the facts of one instant."""
        self.now_s = now_s
        handlers = self._handlers
        for fact in facts:
            handler = handlers.get(type(fact))
            if handler is not None:
                handler(now_s, fact)

    @property
    def all_ended(self) -> bool:
        """Whether every measured job has arrived and ended; False if there is no range of measured jobs."""
        return self.measure is not None and self.ended >= self.measure[1] - self.measure[0]

    def stretches_so_far(self) -> list[Stretch]:
        """Return the stretches until now, including leases that have not ended; for a long run, only the first ones."""
        unfinished = [
            Stretch(held.job.id, self.gpus.worker_types[held.kind], held.ranks, held.started_s, self.now_s)
            for held in self._leases.values()
            if held.started_s < self.now_s
        ]
        finished = self.stretches if self.at_first_arrival is not None else []
        return finished + unfinished[: max(STRETCHES_MAX - len(finished), 0)]

    def gpu_names(self) -> dict[str, list[GpuId]]:
        """Return, by type, all GPUs of all nodes that ever joined, in the order of joining."""
        names: dict[str, list[GpuId]] = {worker_type: [] for worker_type in self.gpus.worker_types}
        for node, (worker_type, gpus) in self._nodes.items():
            names[worker_type] += [f"{node}:{index}" for index in range(gpus)]
        return names

    def settle(self) -> None:
        """Update the rows of unfinished jobs to the time of the last fact."""
        self.gpus.charge_all(self.now_s)
        for job in self._open.values():
            self._store(self.now_s, job)

    def _configured(self, now_s: float, fact: f.Configured) -> None:
        self.settings = fact.settings

    def _rates_given(self, now_s: float, fact: f.RatesGiven) -> None:
        self._pace.add_rates(fact.solo)

    def _prices_set(self, now_s: float, fact: f.PricesSet) -> None:
        self.gpus.set_prices(now_s, fact.price_per_gpu_hour)

    def _job_submitted(self, now_s: float, fact: f.JobSubmitted) -> None:
        number, spec = self.submitted, fact.spec
        self.submitted += 1
        self._live += 1
        self._pace.set_jobs(now_s, self._live)
        row = UNMEASURED
        if self.measure is None or self.measure[0] <= number < self.measure[1]:
            if self.at_first_arrival is None:
                self.at_first_arrival = GpuTotals(now_s, *self.gpus.totals(now_s))
            due_s = math.nan if spec.deadline_s is None else now_s + spec.deadline_s
            row = self.jobs.add(fact.job, spec.name, spec.job_type, spec.gpus, now_s, due_s)
        self._promised.add(fact.job)
        self._open[fact.job] = _OpenJob(fact.job, spec, row, now_s, self._pace.marks(now_s)[spec.gpus])

    def _job_moved(self, now_s: float, fact: f.JobMoved) -> None:
        job = self._open.get(fact.job)
        if job is None or job.ended:
            return
        if fact.move in _END_STATE:
            self._end(now_s, job, _END_STATE[fact.move])
        else:
            job.state = _NEXT_STATE.get(fact.move, job.state)

    def _node_joined(self, now_s: float, fact: f.NodeJoined) -> None:
        self.gpus.node_joined(now_s, fact.spec)
        name, worker_type, gpus = fact.spec.name, fact.spec.worker_type, fact.spec.gpus
        before_type, before = self._nodes.get(name, (worker_type, 0))
        if before:
            self.cluster[before_type] -= before
        self._nodes[name] = (worker_type, gpus)
        self.cluster[worker_type] = self.cluster.get(worker_type, 0) + gpus
        self._capacity_changed(now_s)

    def _node_moved(self, now_s: float, fact: f.NodeMoved) -> None:
        self.gpus.node_moved(now_s, fact.node, fact.state)
        self._capacity_changed(now_s)

    def _node_removed(self, now_s: float, fact: f.NodeRemoved) -> None:
        self.gpus.node_removed(now_s, fact.node)
        self._capacity_changed(now_s)

    def _gpus_broken(self, now_s: float, fact: f.GpusBroken) -> None:
        self.gpus.gpus_broken(now_s, fact.node, fact.gpus)
        self._capacity_changed(now_s)

    def _capacity_changed(self, now_s: float) -> None:
        capacity = dict(zip(self.gpus.worker_types, self.gpus.capacity, strict=True))
        self._pace.set_capacity(now_s, capacity)

    def _allocation_adopted(self, now_s: float, fact: f.AllocationAdopted) -> None:
        self._adopted, self._adopted_rate = fact, None
        if fact.failed:
            self._count_fallback(fact.failed)
        self._promised.adopt(now_s, fact.shares)

    def _allocation_failed(self, now_s: float, fact: f.AllocationFailed) -> None:
        self._count_fallback(fact.why)

    def _count_fallback(self, why: str) -> None:
        self.fallbacks += 1
        self.fallback_why = self.fallback_why or why

    def _round_planned(self, now_s: float, fact: f.RoundPlanned) -> None:
        self.rounds += 1
        self.gpus.sample(now_s, self._running, self._live - self._running)
        self._leases_granted(now_s, fact)

    def _leases_granted(self, now_s: float, fact: f.RoundPlanned | f.GpusFilled) -> None:
        for lease in fact.granted:
            job, ranks = self._open.get(lease.job), lease.gpus
            if job is None:
                continue
            gpus = ranks if len(ranks) == 1 else tuple(sorted(ranks))
            held = _HeldLease(gpus, self.gpus.kind(lease.bundle.worker_type), job=job, ranks=ranks)
            self._leases[lease.id] = job.leases[lease.id] = held
            job.granted = True
            if lease.bundle.label and job.row != UNMEASURED:
                self.jobs.add_plan(job.row, lease.bundle)
            if not job.ended:
                job.state = RUNS

    def _leases_started(self, now_s: float, fact: f.LeasesStarted) -> None:
        marks = self._pace.marks(now_s)
        for name in fact.leases:
            held = self._leases.get(name)
            if held is None or held.running:
                continue
            job = held.job
            held.running, held.started_s, held.mark = True, now_s, marks[job.spec.gpus]
            self.gpus.enter(now_s, held)
            self._running += not job.running
            job.running += 1
            if math.isnan(job.start_s):
                job.start_s = now_s

    def _lease_closed(self, now_s: float, fact: f.LeaseClosed) -> None:
        end = fact.exit
        held = self._leases.pop(end.lease, None)
        if held is None:
            return
        job = held.job
        del job.leases[end.lease]
        if held.running:
            self.gpus.leave(now_s, held)
            job.running -= 1
            self._running -= not job.running
            job.cost_usd += held.cost_usd
            since_s = held.started_s
        else:
            job.cost_usd += self.gpus.count_unseen(held.kind, end.ran_s * len(held.gpus))
            held.started_s = now_s - end.ran_s
            held.mark, since_s = self._pace.marks(now_s)[job.spec.gpus], now_s
        self._credit(now_s, job, held, end.steps, since_s)
        # A lapsed lease has no report of how long its processes ran and stepped.
        if not fact.lapsed:
            job.restart_s += max(end.ran_s - end.stepping_s, 0.0)
        job.preemptions += end.outcome == "yielded"
        if job.ended:
            if not job.running:
                self._store(now_s, job)
                self._forget(job)
        # The job is done, even if it was asked to stop.
        elif end.outcome == "finished":
            self._end(now_s, job, JobState.COMPLETED)
        elif not job.leases and job.state is RUNS:
            job.state = JobState.PREEMPTED

    def _credit(self, now_s: float, job: _OpenJob, held: _HeldLease, steps: float, since_s: float) -> None:
        """Credit a job with a lease's time, and with the time that its steps since `since_s` take in an equal slice."""
        kind, held_s = held.kind, now_s - held.started_s
        job.held_s += held_s
        job.received_s[kind] = job.received_s.get(kind, 0.0) + held_s
        if held_s > 0 and len(self.stretches) < STRETCHES_MAX and self.at_first_arrival is not None:
            worker_type = self.gpus.worker_types[kind]
            self.stretches.append(Stretch(job.id, worker_type, held.ranks, held.started_s, now_s))
        gained = steps - job.steps
        if gained > 0 and job.row != UNMEASURED:
            job.steps = steps
            per_step_s = self._pace.seconds_per_step(job.spec, held.mark, since_s, now_s)
            job.isolated_s += gained * (self._adopted_pace(job.id) if per_step_s is None else per_step_s)

    def _adopted_pace(self, job: str) -> float:
        """Return the time of a step according to the allocation in force, for a job without rates in the table."""
        if self._adopted_rate is None:
            shares = self._adopted.shares if self._adopted else None
            pairs = zip(shares.jobs, shares.isolated_rate, strict=False) if shares else ()
            self._adopted_rate = dict(pairs)
        rate = self._adopted_rate.get(job, 0.0)
        return 1.0 / rate if rate > 0 else 0.0

    def _credit_shares(self, now_s: float, job: _OpenJob) -> None:
        """Credit a job of an ideal run, which has no leases, with exactly its shares."""
        job.received_s = self._promised.so_far(now_s, job.id)
        job.held_s = sum(job.received_s.values())
        for kind, gpu_s in self._promised.gpu_time_so_far(now_s, job.id).items():
            job.cost_usd += self.gpus.count_unseen(kind, gpu_s)
        per_step_s = self._pace.seconds_per_step(job.spec, job.mark, job.arrival_s, now_s)
        job.isolated_s = (job.spec.steps or 0.0) * (per_step_s or 0.0)

    def _end(self, now_s: float, job: _OpenJob, state: JobState) -> None:
        if state == JobState.COMPLETED and not job.granted:
            self._credit_shares(now_s, job)
        job.state, job.ended = state, True
        self._live -= 1
        self._pace.set_jobs(now_s, self._live)
        if job.row != UNMEASURED:
            self.jobs.put(job.row, end_s=now_s)
            self.ended += 1
            self.at_last_end = GpuTotals(now_s, *self.gpus.totals(now_s))
        self._store(now_s, job)
        self._promised.remove(job.id)
        if not job.running:
            self._forget(job)

    def _forget(self, job: _OpenJob) -> None:
        """Forget a job that has ended and has no processes."""
        # These leases were granted but never began.
        for name in job.leases:
            del self._leases[name]
        del self._open[job.id]

    def _store(self, now_s: float, job: _OpenJob) -> None:
        """Update the row of a job to now, if it is measured."""
        if job.row == UNMEASURED:
            return
        held_s, cost_usd, received_s = job.held_s, job.cost_usd, dict(job.received_s)
        for held in job.leases.values():
            if held.running:
                kind, so_far_s = held.kind, now_s - held.started_s
                held_s += so_far_s
                cost_usd += held.cost_usd
                received_s[kind] = received_s.get(kind, 0.0) + so_far_s
        self.jobs.set_state(job.row, job.state)
        self.jobs.put(
            job.row,
            start_s=job.start_s,
            held_s=held_s,
            restart_s=job.restart_s,
            isolated_s=job.isolated_s,
            cost_usd=cost_usd,
            preemptions=job.preemptions,
        )
        self.jobs.put_times(job.row, received_s, self._promised.so_far(now_s, job.id))
