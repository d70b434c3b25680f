"""The series of quotas and budgets of tenants: limits, and the part in use. Single users have none."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.accounts.budgets import spent
from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.core.state import SchedulerState
from scheduler.live.observe.metrics.families import Labels
from scheduler.model.gpu_quotas import GpuQuota, Level

LIMIT, USED = "limit", "used"


def quota_series(state: SchedulerState, now_s: float, name: Callable[[str], str]) -> dict[Labels, float]:
    """Return limit and use of each quota and budget of a tenant, by labels. `name`: the label of a tenant.

    Tenants that share a label are left out, because a sum of their limits would say nothing.
    """
    if not (state.gpu_quotas or state.budgets):
        return {}
    leases, series = QuotaLeases.of_state(state), dict[Labels, float]()
    for tenant in state.settings.tenants:
        if name(tenant.name) != tenant.name:
            continue
        level = Level(tenant.name)
        for kind, gpus in tenant.quota.gpus.items():
            series[tenant.name, "gpus", kind, LIMIT] = gpus
            series[tenant.name, "gpus", kind, USED] = len(leases.gpus(GpuQuota(level, kind, gpus)))
        for budget, so_far in spent(state, state.budgets.of_level(level), now_s).items():
            series[tenant.name, budget.resource, budget.period, LIMIT] = budget.limit
            series[tenant.name, budget.resource, budget.period, USED] = so_far
    return series
