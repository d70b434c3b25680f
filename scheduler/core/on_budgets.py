"""Record, once per period, that a budget is nearly spent, and that jobs wait because it is spent."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.accounts.budgets import recorded_percent, spent
from scheduler.core.facts import BudgetReached
from scheduler.core.outcome import Outcome
from scheduler.core.planning.budget_limits import Beyond
from scheduler.core.state import SchedulerState
from scheduler.model.budgets import Budget, period_at

# The percentages that are recorded. The last one also stands for a rest that is too little for any job that waits.
NEARLY, ALL = 80, 100


def note_reached(out: Outcome, beyond: Beyond) -> None:
    """Record the budgets of which 80 % are spent, and those that admit no job any more."""
    state, now_s = out.state, out.now_s
    if not state.budgets:
        return
    blocking = {budget for budget, _ in (*beyond.wait.values(), *beyond.fill.values())}
    for budget, so_far in spent(state, _counted(state), now_s).items():
        reached = ALL if budget in blocking or so_far >= budget.limit - budget.slack else 0
        if not reached and so_far >= NEARLY / 100 * budget.limit:
            reached = NEARLY
        if reached > recorded_percent(state, budget, now_s):
            out.fact(
                BudgetReached(
                    tenant=budget.account.tenant,
                    user=budget.account.user,
                    resource=budget.resource,
                    period=budget.period,
                    limit=budget.limit,
                    spent=so_far,
                    renews_s=period_at(budget.period, now_s).ends_s,
                    percent=reached,
                )
            )


def _counted(state: SchedulerState) -> Iterable[Budget]:
    """Return the budgets of jobs that have not ended, in the order of their accounts."""
    return sorted({budget for job in state.active.values() for budget in state.budgets.of(job.spec)})
