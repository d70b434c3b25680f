"""The jobs that count in each quota on running jobs, collected in one pass over all leases."""

from __future__ import annotations

from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.core.state import SchedulerState
from scheduler.model.gpu_quotas import Owner
from scheduler.model.job_quotas import JobQuota, JobQuotas
from scheduler.model.lease import STOPPING, Holding, Lease


class JobLeases:
    """The jobs of each quota that have leases, also leases that wait or are ending. A job with two counts once."""

    def __init__(self, quotas: JobQuotas) -> None:
        self._quotas = quotas
        # By quota and job: the leases, oldest first.
        self._leases: dict[JobQuota, dict[str, list[Holding]]] = {}

    @classmethod
    def of_state(cls, state: SchedulerState) -> JobLeases:
        """Return the jobs of the quotas in force."""
        leases = cls(state.running_quotas)
        if state.running_quotas:
            for holding in state.leases.values():
                leases.add(state.jobs[holding.lease.job].spec, holding)
        return leases

    def add(self, owner: Owner, holding: Holding) -> None:
        """Count a lease of a job that belongs to this tenant and user."""
        for quota in self._quotas.of(owner):
            self._leases.setdefault(quota, {}).setdefault(holding.lease.job, []).append(holding)

    def of(self, quota: JobQuota) -> list[str]:
        """Return the jobs that this quota counts."""
        return list(self._leases.get(quota, ()))

    def ending(self, quota: JobQuota) -> list[str]:
        """Return those of its jobs that have only leases that are ending."""
        jobs = self._leases.get(quota, {})
        return [job for job, leases in jobs.items() if all(holding.phase is STOPPING for holding in leases)]

    def to_end_before(self, owner: Owner, lease: Lease) -> set[str]:
        """Return the ending leases of other jobs beside which a quota does not admit the job of this lease."""
        ending: set[str] = set()
        for quota in self._quotas.of(owner):
            jobs = self._leases.get(quota, {})
            if len(jobs.keys() | {lease.job}) > quota.jobs:
                ending.update(
                    holding.lease.id
                    for job in self.ending(quota)
                    for holding in jobs[job]
                    if job != lease.job
                )
        return ending


Counted = QuotaLeases | JobLeases


def counted_leases(state: SchedulerState) -> tuple[Counted, ...]:
    """Return the leases of all quotas; empty if no lease is ending, so that no other has to wait for a quota."""
    if len(state.leases) == len(state.held_leases):
        return ()
    of_gpus = (QuotaLeases.of_state(state),) if state.gpu_quotas else ()
    return (*of_gpus, JobLeases.of_state(state)) if state.running_quotas else of_gpus
