"""Budgets as clients see them: what was spent of each, and when it is renewed."""

from __future__ import annotations

from collections.abc import Iterable

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.accounts.budgets import spent
from scheduler.core.state import SchedulerState
from scheduler.live.wire.job_view import stamp
from scheduler.model.budgets import Budget, period_at
from scheduler.model.gpu_quotas import Level


def budget_limits(
    state: SchedulerState, tenant: str, users: Iterable[str], now_s: float
) -> list[pb.Tenant.Limit]:
    """Return the budgets of a tenant, and those of these users and of users who have spent something."""
    accounts = {account.user for account in state.spent if account.tenant == tenant and account.user}
    budgets: list[Budget] = list(state.budgets.of_level(Level(tenant)))
    for user in sorted(accounts.union(users)):
        budgets += state.budgets.of_level(Level(tenant, user)) if user else ()
    return [
        pb.Tenant.Limit(
            user=budget.account.user,
            resource=budget.resource,
            of=budget.period,
            limit=budget.limit,
            used=so_far,
            renews_at=stamp(period_at(budget.period, now_s).ends_s),
        )
        for budget, so_far in spent(state, budgets, now_s).items()
    ]
