"""Rates of jobs with plans: predicted ones, corrected by what was measured for the plan and for its sisters.

The sisters of a plan are the other plans of its job on the same worker type. The same planner predicted them, so that
it probably was as far off with all of them.
"""

from __future__ import annotations

from statistics import median

from scheduler.core.state import SchedulerState
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.throughput import PlanKey, RateKey

# The correction counts as much as this many plans that were predicted exactly.
EXACT_PLANS = 2


def planned_rate(state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int) -> float:
    """Return the rate of a job on these GPUs, in steps per second; 0 if it has no plan for them that it can use."""
    plan = spec.plan_for(worker_type, gpus)
    if plan is None or is_struck_out(state, spec, plan):
        return 0.0
    if not (state.settings.learn_rates and spec.reports_steps):
        return plan.rate
    predicted = plan.rate * correction(state, spec, worker_type)
    return state.rates.rate(_rate_key(spec, plan), predicted, state.settings.trust_after_s)


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


def correction(state: SchedulerState, spec: JobSpec, worker_type: str) -> float:
    """Return the factor by which measurements correct the predicted rates of all plans of a job on this type.

    It is the median of measured ÷ predicted, drawn towards 1 while few plans have been measured.
    """
    measured = state.rates.measured
    ratios = [
        known.believed / plan.rate
        for plan in spec.plans
        if plan.worker_type == worker_type and (known := measured.get(_rate_key(spec, plan))) is not None
    ]
    if not ratios:
        return 1.0
    return 1.0 + (median(ratios) - 1.0) * len(ratios) / (len(ratios) + EXACT_PLANS)


def _rate_key(spec: JobSpec, plan: Plan) -> RateKey:
    return RateKey(spec.job_type, plan.gpus, plan.worker_type, plan=plan.label)
