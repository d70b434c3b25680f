"""Accounts of budgets: what tenants and their users have spent in the current day, week and month.

A GPU counts from the moment when a lease is sent until its exit is confirmed, but never longer than the lease could run
without another round: to the end of its round, plus `lease_margin_s`. GPUs that packed jobs share count once for each
tenant and user. They are charged in pieces: a piece ends when a lease on the GPUs begins or ends, when a round is
planned, and when prices, settings or the tenant of a job change. So what is known of a piece holds for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scheduler.core.state import SchedulerState
from scheduler.model.bounds import PRICE
from scheduler.model.budgets import Account, Budget, Period, period_at
from scheduler.model.lease import STOPPING, WAITING, Holding

HOUR_S = 3600.0


class Piece(NamedTuple):
    """A time for which GPUs are charged to a budget."""

    budget: Budget
    # Per hour: the number of GPUs, or their price.
    per_hour: float
    since_s: float
    until_s: float

    def charge(self, period: Period, since_s: float, until_s: float) -> float:
        """Return the charge for the part of the piece between these times that belongs to a period."""
        overlap_s = period.overlap_s(max(since_s, self.since_s), min(until_s, self.until_s))
        return self.per_hour * overlap_s / HOUR_S


def per_hour(state: SchedulerState, resource: str, worker_type: str, gpus: int) -> float:
    """Return what these GPUs are charged per hour."""
    return gpus * price_of(state, resource, worker_type)


def price_of(state: SchedulerState, resource: str, worker_type: str) -> float:
    """Return what a GPU of this type is charged per hour."""
    return 1.0 if resource == "gpu_hours" else PRICE.nearest(state.prices.get(worker_type, 0.0))


def ends_s(state: SchedulerState, holding: Holding, now_s: float) -> float:
    """Return until when a lease is charged at most if it is not renewed. `now_s`: when it may be asked to stop."""
    if holding.phase is STOPPING and holding.stop_by_s is not None:
        return holding.stop_by_s
    return max(now_s, state.round.ends_s) + state.settings.lease_margin_s


def ends_s_of_round(state: SchedulerState) -> float:
    """Return until when a lease is charged at most that runs to the end of the round."""
    return state.round.ends_s + state.settings.lease_margin_s


def pieces(state: SchedulerState, now_s: float, leases: Sequence[Holding]) -> Iterator[Piece]:
    """Yield the pieces that leases on the same GPUs are charged from the last charge until they end, by budget."""
    since_s = max(now_s if holding.phase is WAITING else holding.paid_s for holding in leases)
    until_s: dict[Budget, float] = {}
    for holding in leases:
        for budget in state.budgets.of(state.jobs[holding.lease.job].spec):
            until_s[budget] = max(until_s.get(budget, 0.0), ends_s(state, holding, now_s))
    first = leases[0]
    for budget, end_s in until_s.items():
        rate = per_hour(state, budget.resource, first.bundle.worker_type, len(first.lease.gpus))
        yield Piece(budget, rate, since_s, end_s)


def groups(state: SchedulerState) -> list[list[Holding]]:
    """Return the leases that hold their GPUs, those on the same GPUs together."""
    by_gpus: dict[str, list[Holding]] = {}
    for holding in state.leases.values():
        if holding.phase is not WAITING:
            by_gpus.setdefault(holding.lease.gpus[0], []).append(holding)
    return list(by_gpus.values())


def settle(state: SchedulerState, now_s: float, gpu: str) -> None:
    """Charge the leases on a GPU and those beside it up to now, because a lease there begins or ends."""
    if state.budgets:
        names = state.holders.get(gpu, ())
        if names:
            _settle(state, now_s, [state.leases[name] for name in names])


def settle_all(state: SchedulerState, now_s: float) -> None:
    """Charge all leases up to now."""
    for leases in groups(state):
        _settle(state, now_s, leases)


def begin_round(state: SchedulerState, now_s: float) -> None:
    """Charge all leases up to now, and close the accounts of periods that are over."""
    if state.budgets:
        settle_all(state, now_s)
    if state.spent:
        current = {name: period_at(name, now_s).starts_s for name in {id.period for id in state.spent}}
        state.spent = {
            id: account for id, account in state.spent.items() if account.starts_s == current[id.period]
        }


def _settle(state: SchedulerState, now_s: float, leases: Sequence[Holding]) -> None:
    # While leases were not renewed, because no scheduler ran, their end was that of their round.
    for piece in pieces(state, min(now_s, state.round.ends_s), leases) if state.budgets else ():
        account = account_of(state, piece.budget, now_s)
        account.spent += piece.charge(period_at(piece.budget.period, now_s), piece.since_s, now_s)
    for holding in leases:
        holding.paid_s = now_s


def account_of(state: SchedulerState, budget: Budget, now_s: float) -> Account:
    """Return the account of a budget in the present period, which may be a new one."""
    starts_s = period_at(budget.period, now_s).starts_s
    account = state.spent.get(budget.account)
    if account is None or account.starts_s != starts_s:
        account = state.spent[budget.account] = Account(*budget.account, starts_s)
    return account


def recorded(state: SchedulerState, budget: Budget, period: Period) -> float:
    """Return what was charged to a budget in a period so far."""
    account = state.spent.get(budget.account)
    return account.spent if account is not None and account.starts_s == period.starts_s else 0.0


def spent(state: SchedulerState, budgets: Iterable[Budget], now_s: float) -> dict[Budget, float]:
    """Return what was spent of each of these budgets by now, in the present period."""
    periods = {name: period_at(name, now_s) for name in ("day", "week", "month")}
    by_budget = {budget: recorded(state, budget, periods[budget.period]) for budget in budgets}
    if state.budgets:
        for leases in groups(state):
            for piece in pieces(state, min(now_s, state.round.ends_s), leases):
                if piece.budget in by_budget:
                    by_budget[piece.budget] += piece.charge(periods[piece.budget.period], 0.0, now_s)
    return by_budget


def recorded_percent(state: SchedulerState, budget: Budget, now_s: float) -> int:
    """Return the last percentage of a budget that was recorded in the present period."""
    account = state.spent.get(budget.account)
    is_current = account is not None and account.starts_s == period_at(budget.period, now_s).starts_s
    return account.reached if account is not None and is_current else 0
