"""The leases that have not ended, and what is known of their jobs, as the ledger keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from scheduler.core.accounts import credit
from scheduler.core.messages import Exit
from scheduler.core.state import SchedulerState
from scheduler.live.observe.books import OpenTime
from scheduler.live.observe.division import OPEN, Turn, divide
from scheduler.live.observe.past_rows import ms
from scheduler.model.jobs import Job, JobState
from scheduler.model.lease import SENT, STOPPING, WAITING, Holding, Lease, nodes_of


class OpenLease(msgspec.Struct):
    """A lease that has not ended."""

    lease: Lease
    granted_s: float
    started_s: float | None = None
    # Leases that have to end before this one is sent to its nodes.
    waits_for: set[str] = msgspec.field(default_factory=set)
    is_stopping: bool = False
    # Why it is stopping.
    why: str = ""
    # As in `Holding`. They mean nothing while it waits.
    sent_s: float = 0.0
    sent_steps: float = 0.0
    reported_s: float = 0.0
    steps: float = 0.0
    stepping_s: float = 0.0
    idle_since: dict[str, float] = msgspec.field(default_factory=dict)
    was_idle_s: float = 0.0

    @classmethod
    def of(cls, holding: Holding) -> OpenLease:
        """Return the lease that the state has."""
        entry = cls(
            holding.lease,
            holding.granted_s,
            holding.started_s,
            set(holding.waits_for),
            holding.phase is STOPPING,
            holding.why,
        )
        if holding.phase is not WAITING:
            entry.sent_s = holding.granted_s if holding.sent_s is None else holding.sent_s
            entry.sent_steps, entry.reported_s = holding.sent_steps, holding.reported_s
            entry.steps, entry.stepping_s = holding.steps, holding.stepping_s
            entry.idle_since, entry.was_idle_s = dict(holding.idle_since), holding.was_idle_s
        return entry

    def holding(self) -> Holding:
        """Return the lease as quotas count it."""
        phase = STOPPING if self.is_stopping else SENT
        return Holding(lease=self.lease, phase=phase, granted_s=self.granted_s, bundle=self.lease.bundle)

    def idle_s(self, now_s: float) -> float:
        """Return how long all its GPUs were idle until now."""
        idle_s = self.was_idle_s
        if self.idle_since and len(self.idle_since) == len(nodes_of(self.lease.gpus)):
            idle_s += max(now_s - max(self.idle_since.values()), 0.0)
        return idle_s


class KnownJob(msgspec.Struct):
    """The fields of a job that its rows need."""

    user: str = ""
    tenant: str = ""
    job_type: str = ""
    reports_steps: bool = True
    # The steps from which it continues with its next lease.
    steps: float = 0.0
    is_cancelled: bool = False

    @classmethod
    def of(cls, job: Job) -> KnownJob:
        """Return the job that the state has."""
        spec, is_cancelled = job.spec, job.state is JobState.CANCELLED
        return cls(spec.user, spec.tenant, spec.job_type, spec.reports_steps, job.steps_done, is_cancelled)


def turn_of(entry: OpenLease, job: KnownJob, end: Exit | None, now_s: float) -> Turn:
    """Return how a lease went that ends now, or that goes on if there is no exit."""
    started_s = entry.started_s
    ran_s = 0.0 if started_s is None else max(now_s - started_s, 0.0)
    return Turn(
        held_s=max(now_s - entry.sent_s, 0.0),
        ran_s=ran_s if end is None else end.ran_s,
        stepping_s=entry.stepping_s if end is None else end.stepping_s,
        unreported_s=max(now_s - entry.reported_s, 0.0),
        steps_before=entry.sent_steps,
        steps_most=entry.steps if end is None else max(entry.steps, end.steps),
        steps_kept=job.steps,
        outcome=OPEN if end is None else end.outcome,
        was_killed=end is not None and end.code != 0,
        was_cancelled=job.is_cancelled,
        reports_steps=job.reports_steps,
        idle_s=entry.idle_s(now_s),
    )


class HeldLease(NamedTuple):
    """A lease that holds its GPUs at some moment, its job, and the leases on the same GPUs that were sent earlier."""

    holding: Holding
    job: Job
    earlier: Sequence[Holding]


def held_leases(state: SchedulerState) -> list[HeldLease]:
    """Return the leases that hold their GPUs now. Their times can be counted later, even if they have ended then."""
    return [
        HeldLease(holding, state.jobs[holding.lease.job], _earlier(state, holding))
        for holding in state.leases.values()
        if holding.phase is not WAITING
    ]


def _earlier(state: SchedulerState, holding: Holding) -> Sequence[Holding]:
    beside = credit.beside(state, holding)
    return [other for other in beside if int(other.lease.id) < int(holding.lease.id)]


def open_times(leases: Iterable[HeldLease], now_s: float) -> list[OpenTime]:
    """Return the time that each of these leases has held its GPUs until now."""
    times = []
    for holding, job, earlier in leases:
        entry = OpenLease.of(holding)
        if ms(now_s) <= ms(entry.sent_s):
            continue
        useful_s, lost_s, idle_s = divide(turn_of(entry, KnownJob.of(job), None, now_s))
        shared_s = max(
            (now_s - max(entry.sent_s, OpenLease.of(other).sent_s) for other in earlier), default=0.0
        )
        time = OpenTime(
            user=job.spec.user,
            tenant=job.spec.tenant,
            job_type=job.spec.job_type,
            worker_type=holding.lease.bundle.worker_type,
            gpus=holding.lease.gpus,
            begin_ms=ms(entry.sent_s),
            end_ms=ms(now_s),
            useful_ms=useful_s * 1000,
            lost_ms=lost_s * 1000,
            idle_ms=idle_s * 1000,
            shared_ms=ms(shared_s),
        )
        times.append(time)
    return times
