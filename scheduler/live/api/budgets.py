"""Budgets as clients see them: what was spent and is set aside of each, and when it is renewed."""

from __future__ import annotations

from collections.abc import Iterable

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.accounts.budgets import spent
from scheduler.core.planning.budget_limits import committed
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
    periods = {budget: period_at(budget.period, now_s) for budget in budgets}
    set_aside = dict.fromkeys(budgets, 0.0)
    for piece in committed(state, now_s) if budgets else ():
        if (period := periods.get(piece.budget)) is not None:
            set_aside[piece.budget] += piece.charge(period, now_s, period.ends_s)
    return [
        pb.Tenant.Limit(
            user=budget.account.user,
            resource=budget.resource,
            of=budget.period,
            limit=budget.limit,
            used=so_far,
            renews_at=stamp(periods[budget].ends_s),
            committed=set_aside[budget],
        )
        for budget, so_far in spent(state, budgets, now_s).items()
    ]
