"""Accounts of leases: the time they receive, which is credited in advance and taken back if unused, and their cost.

A bundle is credited up to the end of the round as soon as its processes may start, so that turns can be compared at
any moment. The two leases of a packed pair are one bundle, credited once. Cost is charged for time with running
processes, in pieces: a piece ends when the price, or the number of jobs on the GPUs, changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.state import SchedulerState
from scheduler.model.bounds import PRICE
from scheduler.model.lease import RUNNING, SENT, STOPPING, Bundle, Holding

HOUR_S = 3600.0


def credit_round(state: SchedulerState) -> None:
    """Credit a new round to every bundle that has its GPUs. A bundle that waits is credited when it gets its GPUs."""
    ends_s = state.round.ends_s
    bundles: list[Bundle] = []
    for holding in state.leases.values():
        if holding.phase is RUNNING or holding.phase is SENT:
            holding.credit_s = ends_s
            bundles.append(holding.bundle)
    state.shares.receive(bundles, state.settings.round_s)


def credit(state: SchedulerState, now_s: float, holding: Holding, until_s: float) -> None:
    """Credit the bundle of a lease that starts or continues, up to `until_s`."""
    since_s = max(now_s, state.round.starts_s)
    if len(holding.bundle.jobs) > 1:
        since_s = max(since_s, _partner_credit_s(state, holding))
    holding.credit_s = until_s
    if since_s < until_s:
        state.shares.receive_one(holding.bundle, until_s - since_s)


def take_back(state: SchedulerState, now_s: float, holding: Holding) -> None:
    """Take back the unused credit of a lease that ends or changes its bundle.

    A packed pair keeps the credit of the partner's lease: only the time after it is taken back.
    """
    starts_s, since_s, until_s = state.round.starts_s, now_s, holding.credit_s
    holding.credit_s = 0.0
    if until_s <= now_s:
        return
    if holding.lease.round_number == state.round.number:
        # A lease that was planned ahead is credited from the start of its round.
        since_s = max(since_s, starts_s)
    if len(holding.bundle.jobs) > 1:
        since_s = max(since_s, _partner_credit_s(state, holding))
    if since_s < until_s:
        # The part before the start of the current round has decayed once.
        faded_s = max(min(until_s, starts_s) - since_s, 0.0)
        unused_s = until_s - since_s - (1.0 - state.settings.decay) * faded_s
        state.shares.give_back(holding.bundle, unused_s)


def change_bundle(state: SchedulerState, now_s: float, holding: Holding, bundle: Bundle) -> None:
    """Continue a lease as another bundle, with a partner or without, and move its unused credit to that bundle."""
    until_s = holding.credit_s
    take_back(state, now_s, holding)
    holding.bundle = bundle
    if holding.phase is not STOPPING:
        state.enter_held(holding)
    if until_s > now_s:
        credit(state, now_s, holding, until_s)


def _partner_credit_s(state: SchedulerState, holding: Holding) -> float:
    """Return the time up to which the lease of the partner in the same bundle is credited; 0 without a partner."""
    return max((h.credit_s for h in beside(state, holding) if h.bundle == holding.bundle), default=0.0)


def beside(state: SchedulerState, holding: Holding) -> Sequence[Holding]:
    """Return the other leases that have, or may have, processes on the GPUs of this one."""
    own_id = holding.lease.id
    names = state.holders.get(holding.lease.gpus[0], ())
    if len(names) == 1 and names[0] == own_id:
        return ()
    return [state.leases[name] for name in names if name != own_id]


def charge(state: SchedulerState, now_s: float, holding: Holding) -> None:
    """Charge a lease up to now, before its price or the number of jobs on its GPUs changes."""
    if holding.started_s is not None:
        _charge(state, holding, now_s - holding.started_s)


def charge_all(state: SchedulerState, now_s: float) -> None:
    """Charge all leases up to now, before prices change."""
    for holding in state.leases.values():
        charge(state, now_s, holding)


def settle(state: SchedulerState, holding: Holding, ran_s: float) -> float:
    """Charge a closed lease for all of its time, and return its total cost."""
    _charge(state, holding, ran_s)
    return holding.cost_usd


def cost_by(state: SchedulerState, holding: Holding, now_s: float) -> tuple[float, float]:
    """Return the cost of a lease up to now, and its current cost per second."""
    if holding.started_s is None:
        return 0.0, 0.0
    per_s = _cost_per_s(state, holding)
    return holding.cost_usd + per_s * max(now_s - holding.started_s - holding.charged_s, 0.0), per_s


def _charge(state: SchedulerState, holding: Holding, ran_s: float) -> None:
    if ran_s > holding.charged_s:
        holding.cost_usd += (ran_s - holding.charged_s) * _cost_per_s(state, holding)
        holding.charged_s = ran_s


def _cost_per_s(state: SchedulerState, holding: Holding) -> float:
    """Return the current cost of a lease per second. While both packed jobs have processes, each pays half."""
    price = PRICE.nearest(state.prices.get(holding.bundle.worker_type, 0.0))
    if not price:
        return 0.0
    sharers = 1
    for other in beside(state, holding):
        sharers += other.started_s is not None
    return price / HOUR_S * holding.bundle.gpus / sharers
