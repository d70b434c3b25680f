"""The leases that count in each quota on GPUs, collected in one pass over all leases."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.state import SchedulerState
from scheduler.model.gpu_quotas import GpuQuota, GpuQuotas, Owner
from scheduler.model.lease import STOPPING, GpuId, Holding, Lease


class QuotaLeases:
    """The leases of each quota, oldest first, also those that wait for their GPUs."""

    def __init__(self, quotas: GpuQuotas) -> None:
        self._quotas = quotas
        self._leases: dict[GpuQuota, list[Holding]] = {}
        self._gpus: dict[GpuQuota, set[GpuId]] = {}

    @classmethod
    def of_state(cls, state: SchedulerState) -> QuotaLeases:
        """Return the leases of the quotas in force."""
        leases = cls(state.gpu_quotas)
        if state.gpu_quotas:
            for holding in state.leases.values():
                leases.add(state.jobs[holding.lease.job].spec, holding)
        return leases

    def add(self, owner: Owner, holding: Holding) -> None:
        """Count a lease of a job that belongs to this tenant and user."""
        for quota in self._quotas.of(owner):
            if quota.counts(holding.bundle.worker_type):
                self._leases.setdefault(quota, []).append(holding)
                self._gpus.setdefault(quota, set()).update(holding.lease.gpus)

    def of(self, quota: GpuQuota) -> Sequence[Holding]:
        """Return the leases that this quota counts."""
        return self._leases.get(quota, ())

    def gpus(self, quota: GpuQuota) -> set[GpuId]:
        """Return the GPUs that this quota counts: those that two jobs share count once."""
        return self._gpus.get(quota, set())

    def to_end_before(self, owner: Owner, lease: Lease) -> set[str]:
        """Return the ending leases beside whose GPUs a quota does not admit those of this lease."""
        ending: set[str] = set()
        for quota in self._quotas.of(owner):
            if (
                quota.counts(lease.bundle.worker_type)
                and len(self.gpus(quota).union(lease.gpus)) > quota.gpus
            ):
                ending.update(holding.lease.id for holding in self.of(quota) if holding.phase is STOPPING)
        return ending
