"""Rates of jobs with plans: predicted ones, corrected by what was measured for the plan and for its sisters.

The sisters of a plan are the other plans of its job on the same worker type. The same planner predicted them, so that
it probably was as far off with all of them. Once three were measured, computation and exchanges are corrected by
factors of their own: if the network is slower than predicted, plans that exchange more data are corrected more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.throughput import PlanKey, RateKey

# The correction by the median counts as much as this many plans that were predicted exactly.
EXACT_PLANS = 2
# Computation and exchanges are told apart if so many plans were measured, whose parts of exchanges differ by so much.
FITTED_PLANS, FITTED_RANGE = 3, 0.03
# How far measurements usually are from a perfect fit, and computation and exchanges from the median correction.
NOISE, SPREAD = 0.03, 0.5
# A measurement beyond this multiple of the median tells nothing of computation and exchanges.
FAR = 100.0


def planned_rates(state: SchedulerState, spec: JobSpec, worker_type: str) -> dict[int, float]:
    """Return the rates of a job by its plans for this type, in steps per second, by number of GPUs.

    Plans that were struck out are left out.
    """
    plans = [plan for plan in spec.plans if plan.worker_type == worker_type]
    usable = [plan for plan in plans if not is_struck_out(state, spec, plan)]
    if not (state.settings.learn_rates and spec.reports_steps):
        return {plan.gpus: plan.rate for plan in usable}
    correct = _correction(state, spec, plans)
    rates = {}
    for plan in usable:
        # A product of rates may be beyond the limits.
        predicted = bounds.TABLE_RATE.nearest(plan.rate * correct(plan))
        rates[plan.gpus] = state.rates.rate(_rate_key(spec, plan), predicted, state.settings.trust_after_s)
    return rates


def is_struck_out(state: SchedulerState, spec: JobSpec, plan: Plan) -> bool:
    """Whether a plan of this job ran out of memory before."""
    return bool(state.rates.struck_out) and plan_key(spec, plan) in state.rates.struck_out


def is_measured(state: SchedulerState, spec: JobSpec, plan: Plan) -> bool:
    """Whether a job of this type has made progress by this plan."""
    return _rate_key(spec, plan) in state.rates.measured


def plans_left(state: SchedulerState, spec: JobSpec) -> list[Plan]:
    """Return the plans that a job may use and that are not struck out."""
    widths = spec.widths(spec.widest)
    return [
        plan
        for plan in spec.plans
        if plan.gpus in widths and spec.may_use(plan.worker_type) and not is_struck_out(state, spec, plan)
    ]


def plan_key(spec: JobSpec, plan: Plan) -> PlanKey:
    """Return the key by which a plan of this job is struck out."""
    return PlanKey(spec.user, spec.job_type, plan.worker_type, plan.gpus, plan.label)


def _correction(state: SchedulerState, spec: JobSpec, plans: Sequence[Plan]) -> Callable[[Plan], float]:
    """Return the function that tells by which factor the predicted rate of a plan is corrected.

    `plans`: all plans of the job for one type. The factor is the median of measured ÷ predicted rates, drawn towards 1
    while few plans have been measured, or that of a fit.
    """
    measured = state.rates.measured
    known = [(plan, measured.get(_rate_key(spec, plan))) for plan in plans] if measured else []
    points = [(plan.exchange, entry.believed / plan.rate) for plan, entry in known if entry is not None]
    if not points:
        return lambda plan: 1.0
    center = 1.0 + (median(ratio for _, ratio in points) - 1.0) * len(points) / (len(points) + EXACT_PLANS)
    exchanges = [exchange for exchange, _ in points]
    if len(points) < FITTED_PLANS or max(exchanges) - min(exchanges) < FITTED_RANGE:
        return lambda plan: center
    # From here on in times, which are additive, as multiples of those by the median correction.
    slower = [(exchange, min(max(center / ratio, 1.0 / FAR), FAR)) for exchange, ratio in points]
    computing, exchanging = fit(slower)
    least, most = min(time for _, time in slower) / 2.0, max(time for _, time in slower) * 2.0

    def factor(plan: Plan) -> float:
        time = computing * (1.0 - plan.exchange) + exchanging * plan.exchange
        return center / min(max(time, least), most)

    return factor


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return by how much computation and exchanges take longer than predicted, from three plans or more.

    `points`: of each plan, the part of exchanges in its predicted step, and measured ÷ predicted time. The two factors
    minimise the sum of squared relative errors. Both are drawn towards 1, the more so the worse any two factors fit,
    so that they differ from 1 only as far as the points prove.
    """
    computing, exchanging = _solved(points, (NOISE / SPREAD) ** 2)
    errors = [(computing * (1.0 - part) + exchanging * part) / time - 1.0 for part, time in points]
    variance = sum(error * error for error in errors) / (len(points) - 2)
    return _solved(points, max(NOISE**2, variance) / SPREAD**2)


def _solved(points: Sequence[tuple[float, float]], pull: float) -> tuple[float, float]:
    """Solve the least squares of `fit` by its normal equations, to which `pull` adds two points that say 1."""
    rows = [((1.0 - part) / time, part / time) for part, time in points]
    uu, vv = (sum(row[i] * row[i] for row in rows) + pull for i in (0, 1))
    uv = sum(u * v for u, v in rows)
    u1, v1 = (sum(row[i] for row in rows) + pull for i in (0, 1))
    computing, exchanging = u1 * vv - v1 * uv, v1 * uu - u1 * uv
    # Neither can be negative. If the best one would be, the other one explains all.
    if computing <= 0.0:
        return 0.0, v1 / vv
    if exchanging <= 0.0:
        return u1 / uu, 0.0
    determinant = uu * vv - uv * uv
    return computing / determinant, exchanging / determinant


def _rate_key(spec: JobSpec, plan: Plan) -> RateKey:
    return RateKey(spec.job_type, plan.gpus, plan.worker_type, plan=plan.label)
