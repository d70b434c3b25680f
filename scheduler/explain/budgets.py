"""Explain jobs that wait because budgets of their tenants or of their user do not admit another round."""

from __future__ import annotations

from scheduler.core.accounts.budgets import spent
from scheduler.core.planning.budget_limits import limits_for
from scheduler.explain.answer import Change, Reason
from scheduler.explain.finding import Finding
from scheduler.explain.forecast import boundary_s
from scheduler.explain.remedies import expected
from scheduler.explain.scene import Column, Scene
from scheduler.explain.start import UNKNOWN, Start
from scheduler.explain.wording import when
from scheduler.model.budgets import Budget, Period, day_of, figure


def within_budgets(scene: Scene, columns: list[Column]) -> tuple[list[Column], Finding | None]:
    """Return those of these columns that the budgets admit for a round. If there are none, explain it."""
    state, now_s = scene.state, scene.now_s
    if not state.budgets.of(scene.job.spec):
        return columns, None
    jobs = dict.fromkeys(job for column in columns for job in column.bundle.jobs)
    starts_s = boundary_s(state, now_s)
    # Who is beyond a budget is decided when the next round is prepared.
    at_s = max(now_s, starts_s - state.settings.solve_lead_s)
    limits = limits_for(state, at_s, starts_s + state.settings.round_s, jobs)
    purse = limits.purse(state.held_leases)
    exceeded = [purse.first_exceeded(column.bundle) for column in columns]
    admitted = [column for column, row in zip(columns, exceeded, strict=True) if row is None]
    if admitted or not columns:
        return admitted, None
    row = exceeded[0]
    assert row is not None
    budget, period = limits.rows[row]
    terms = limits.limits[row]
    bundle = columns[0].bundle
    round_cost = bundle.gpus * terms.price[bundle.worker_type] * (terms.before_h + terms.after_h)
    return [], _spent(scene, budget, period, round_cost)


def _spent(scene: Scene, budget: Budget, period: Period, round_cost: float) -> Finding:
    state, now_s = scene.state, scene.now_s
    so_far = spent(state, [budget], now_s)[budget] if period.starts_s <= now_s else 0.0
    level, limit = str(budget.level), budget.amount(budget.limit)
    text = (
        f"{level[0].upper()}{level[1:]} may spend {limit} a {budget.period}, and has spent {figure(so_far)}"
    )
    text += f"; the next round of this job takes {figure(round_cost)}, with the time to stop."
    text += f" The budget is renewed on {day_of(period.ends_s)}, {when(period.ends_s, now_s)}."
    renewed = expected("budget_renewed", f"a new {budget.period} begins", period.ends_s, now_s)
    # A budget that is too little for a round never lets the job run.
    start = Start(period.ends_s, "budget_renewed", "likely") if round_cost <= budget.limit else UNKNOWN
    return Finding(Reason.QUOTA_BUDGET, text, (), (renewed, _raise(budget, so_far + round_cost)), start)


def _raise(budget: Budget, least: float) -> Change:
    each_user = "" if budget.level.user is None else "each-user-"
    option = f"--{each_user}{budget.resource.replace('_', '-')}"
    command = f"gavel tenant set {budget.level.tenant} {option} {budget.period}={_ceiling(least)}"
    return Change(what="raise_quota", text=f"an operator raises the budget (`{command}`)")


def _ceiling(value: float) -> str:
    """Return the least number of two decimals that is not below a value."""
    return f"{-(-value * 100 // 1) / 100:g}" if value < 1e12 else f"{value:g}"
