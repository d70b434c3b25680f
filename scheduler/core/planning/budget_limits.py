"""Compute the rest of each budget for a round, and find the jobs that are beyond their budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler.core.accounts import budgets
from scheduler.core.accounts.budgets import HOUR_S
from scheduler.core.state import SchedulerState
from scheduler.model.budgets import Budget, Period, day_of, figure, period_at
from scheduler.model.jobs import Job
from scheduler.model.lease import STOPPING, WAITING, Bundle, Holding
from scheduler.rounds.budget import Purse
from scheduler.rounds.inputs import Held, SpendingLimit


class RoundLimits(NamedTuple):
    """The budgets that a round must fit, each as one or two rows: the present period, and the next if it begins."""

    limits: tuple[SpendingLimit, ...]
    # The budget and the period of each row.
    rows: tuple[tuple[Budget, Period], ...]
    # By job.
    of: Mapping[str, tuple[int, ...]]

    def purse(self, held: Mapping[str, Held]) -> Purse:
        """Return the rows, from which columns can be taken one by one."""
        return Purse(self.limits, self.of, held)


NO_LIMITS = RoundLimits((), (), {})


def limits_for(
    state: SchedulerState, now_s: float, round_ends_s: float, jobs: Iterable[str], *, backfills: bool = False
) -> RoundLimits:
    """Return what is left of the budgets of these jobs for a round, after all leases of now have ended.

    `backfills`: only budgets beyond which jobs may still fill idle GPUs; otherwise, only those beyond which they wait.
    """
    if not state.budgets:
        return NO_LIMITS
    margin_s = state.settings.lease_margin_s
    leases_end_s = max(now_s, state.round.ends_s) + margin_s
    until_s = max(round_ends_s + margin_s, leases_end_s)
    of_job = {
        name: [b for b in state.budgets.of(state.jobs[name].spec) if b.backfills == backfills]
        for name in jobs
    }
    periods: dict[Budget, list[Period]] = {}
    for budget in dict.fromkeys(b for own in of_job.values() for b in own):
        present = period_at(budget.period, now_s)
        periods[budget] = [present]
        if present.ends_s < until_s:
            periods[budget].append(period_at(budget.period, present.ends_s))
    left = _left(state, now_s, periods)
    limits, rows = [], list(left)
    number = {row: index for index, row in enumerate(rows)}
    for (budget, period), rest in left.items():
        limits.append(
            SpendingLimit(
                left=rest + budget.slack,
                price={kind: budgets.price_of(state, budget.resource, kind) for kind in state.size_of_type},
                before_h=period.overlap_s(now_s, leases_end_s) / HOUR_S,
                after_h=period.overlap_s(leases_end_s, until_s) / HOUR_S,
            )
        )
    of = {
        name: tuple([number[b, period] for b in own for period in periods[b]])
        for name, own in of_job.items()
        if own
    }
    return RoundLimits(tuple(limits), tuple(rows), of)


def committed(state: SchedulerState, now_s: float) -> list[budgets.Piece]:
    """Return what is charged from now on if no lease is renewed."""
    pieces: list[budgets.Piece] = []
    for leases in budgets.groups(state):
        pieces += budgets.pieces(state, now_s, leases)
    waiting: dict[tuple[str, ...], list[Holding]] = {}
    for holding in state.leases.values():
        if holding.phase is WAITING:
            waiting.setdefault(holding.lease.gpus, []).append(holding)
    for leases in waiting.values():
        # Budgets of a partner that has the GPUs already pay for them.
        shared = {
            budget
            for name in state.holders.get(leases[0].lease.gpus[0], ())
            if state.leases[name].phase is not STOPPING
            for budget in state.budgets.of(state.jobs[state.leases[name].lease.job].spec)
        }
        former = _former(state, leases)
        own = {} if former is None else {p.budget: p for p in budgets.pieces(state, now_s, former)}
        for piece in budgets.pieces(state, now_s, leases):
            before = own.get(piece.budget)
            if piece.budget in shared:
                continue
            if before is None:
                pieces.append(piece)
                continue
            # Its jobs do not hold both at once: it begins when the former leases have ended.
            pieces.append(piece._replace(since_s=before.until_s))
            more = max(piece.per_hour - before.per_hour, 0.0)
            pieces.append(piece._replace(per_hour=more, until_s=min(piece.until_s, before.until_s)))
    return pieces


def _former(state: SchedulerState, waiting: Sequence[Holding]) -> list[Holding] | None:
    """Return the ending leases of the same jobs, if these held their GPUs together and with no other job."""
    leaving = [state.leases.get(state.jobs[holding.lease.job].leaving or "") for holding in waiting]
    former = [holding for holding in leaving if holding is not None and holding.phase is STOPPING]
    if len(former) < len(waiting) or len({holding.lease.gpus for holding in former}) > 1:
        return None
    beside = state.holders.get(former[0].lease.gpus[0], ())
    return former if len(beside) == len(former) else None


def _left(
    state: SchedulerState, now_s: float, periods: Mapping[Budget, Sequence[Period]]
) -> dict[tuple[Budget, Period], float]:
    """Return what is left of each budget in each of its periods, after all leases of now have ended."""
    spent = budgets.spent(state, periods, now_s)
    left: dict[tuple[Budget, Period], float] = {}
    for budget, both in periods.items():
        for index, period in enumerate(both):
            left[budget, period] = budget.limit - (spent[budget] if index == 0 else 0.0)
    for piece in committed(state, now_s):
        for period in periods.get(piece.budget, ()):
            left[piece.budget, period] -= piece.charge(period, now_s, period.ends_s)
    return left


class Beyond(NamedTuple):
    """The jobs whose budgets admit no way to run in a round, each with a budget that does not, and its period."""

    # Jobs that have to wait.
    wait: Mapping[str, tuple[Budget, Period]]
    # Jobs that may still fill idle GPUs.
    fill: Mapping[str, tuple[Budget, Period]]

    @property
    def jobs(self) -> tuple[str, ...]:
        """All these jobs, sorted."""
        return tuple(sorted({*self.wait, *self.fill}))


NONE_BEYOND = Beyond({}, {})


def beyond_budgets(state: SchedulerState, now_s: float, round_ends_s: float) -> Beyond:
    """Return the jobs that are beyond their budgets for a round."""
    if not state.budgets:
        return NONE_BEYOND
    wait = _exceeding(state, limits_for(state, now_s, round_ends_s, state.active))
    return Beyond(wait, beyond_backfills(state, now_s, round_ends_s))


def beyond_backfills(
    state: SchedulerState, now_s: float, round_ends_s: float
) -> Mapping[str, tuple[Budget, Period]]:
    """Return the jobs that are beyond their budgets for a round, but may still fill idle GPUs."""
    if not state.budgets:
        return {}
    return _exceeding(state, limits_for(state, now_s, round_ends_s, state.active, backfills=True))


def _exceeding(state: SchedulerState, limits: RoundLimits) -> dict[str, tuple[Budget, Period]]:
    if not limits.limits:
        return {}
    purse = limits.purse(state.held_leases)
    exceeding: dict[str, tuple[Budget, Period]] = {}
    # Jobs with the same needs and the same budgets differ in nothing.
    known: dict[object, int | None] = {}
    for name, rows in limits.of.items():
        job, held = state.jobs[name], state.held_leases.get(name)
        if held is not None and purse.first_exceeded(held.bundle) is None:
            continue
        # Another form of a running job is charged less, because its lease of now is counted already.
        key = name if held is not None else (rows, job.spec.worker_types, job.spec.narrowest)
        if key not in known:
            known[key] = _exceeded_everywhere(state, purse, job)
        row = known[key]
        if row is not None:
            exceeding[name] = limits.rows[row]
    return exceeding


def _exceeded_everywhere(state: SchedulerState, purse: Purse, job: Job) -> int | None:
    """Return the row of a budget that does not admit the narrowest form of a job, if no worker type is admitted."""
    first: int | None = None
    for kind in sorted(state.size_of_type):
        if job.spec.may_use(kind):
            row = purse.first_exceeded(Bundle((job.id,), kind, job.spec.narrowest))
            if row is None:
                return None
            first = row if first is None else first
    return first


def beyond_renewal(state: SchedulerState, now_s: float, ends_s: float) -> tuple[str, ...]:
    """Return the leases whose budgets do not admit another round. The oldest leases are admitted first."""
    if not state.budgets:
        return ()
    held, ended, paid = state.held_leases, list[str](), set[Bundle]()
    purse = limits_for(state, now_s, ends_s, held).purse(held)
    for name, holding in held.items():
        bundle = holding.bundle
        if bundle in paid:
            continue
        if purse.fits(bundle.jobs, bundle):
            purse.take(bundle.jobs, bundle)
            paid.add(bundle)
        else:
            ended.append(state.jobs[name].lease or "")
    return tuple(ended)


def spent_budgets(
    state: SchedulerState, now_s: float, ends_s: float, leases: Iterable[str]
) -> dict[str, str]:
    """Return those of these leases whose budgets do not admit another round, each with its budget in words."""
    if not state.budgets:
        return {}
    holdings = {name: state.leases[name] for name in leases}
    limits = limits_for(state, now_s, ends_s, [holding.lease.job for holding in holdings.values()])
    purse = limits.purse(state.held_leases)
    words: dict[str, str] = {}
    for name, holding in holdings.items():
        row = purse.first_exceeded(holding.bundle)
        if row is not None:
            budget, _ = limits.rows[row]
            so_far = budgets.spent(state, [budget], now_s)[budget]
            renewed = day_of(period_at(budget.period, now_s).ends_s)
            spent = f"{figure(so_far)} of {budget.amount(budget.limit)} a {budget.period}"
            words[name] = f"{budget.level} has spent {spent}; the budget is renewed on {renewed}"
    return words
