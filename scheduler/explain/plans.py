"""Descriptions of the plan by which a job runs, beside its best other plan, and of plans that ran out of memory."""

from __future__ import annotations

from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.planned_rates import is_struck_out, plans_left
from scheduler.core.state import SchedulerState
from scheduler.explain.scene import Column, Scene
from scheduler.explain.wording import jobs, listed, percent, some
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle

# An explanation names at most this many of the jobs that hold the GPUs of a faster plan.
HOLDERS_NAMED = 3


def about_plans(state: SchedulerState, job: Job, scene: Scene | None) -> str:
    """Describe why a job runs by its present plan, and which plans it no longer uses; empty if it has no plans."""
    if not job.spec.plans or job.is_terminal:
        return ""
    holding = state.leases.get(job.lease or "")
    text = "" if holding is None or scene is None else _present(scene, holding.bundle)
    if names := state.left_out(job.spec):
        text += (
            f" It cannot use {some(names)}, where agents of an earlier release ignore plans: upgrade them."
        )
    struck = [
        _named(Bundle((job.id,), plan.worker_type, plan.gpus, plan.label))
        for plan in job.spec.plans
        if is_struck_out(state, job.spec, plan)
    ]
    return text + (f" Not used again, because memory ran out: {listed(struck)}." if struck else "")


def _present(scene: Scene, bundle: Bundle) -> str:
    """Describe the plan by which a job runs: its rate, its share, and what the best other plan would give."""
    chosen = scene.job.spec.plan_for(bundle.worker_type, bundle.gpus)
    column = next((column for column in scene.columns if column.bundle == bundle), None)
    if chosen is None or column is None:
        return ""
    predicted = (
        "as predicted" if f"{column.rate:.3g}" == f"{chosen.rate:.3g}" else f"predicted: {chosen.rate:.3g}"
    )
    share = f"the allocation gives this plan {percent(column.share)} of the time"
    if column.row is None:
        share = "the next allocation decides about this plan"
    text = f" It runs by plan {chosen.label}, which gives {column.rate:.3g} steps/s ({predicted}); {share}."
    others = [other for other in scene.columns if other is not column and scene.possible(other)]
    if others:
        best = max(others, key=lambda other: (other.rate, other.share))
        text += _faster(scene, column, best) if best.rate > column.rate else _slower(column, best)
    return text + _too_wide(scene, column)


def _slower(column: Column, best: Column) -> str:
    """Describe the next plan of a job that runs by its fastest one."""
    if best.rate == column.rate:
        return f" {_named(best.bundle)} is as fast."
    less = percent(1 - best.rate / column.rate)
    return f" No other plan is faster: the next, {_named(best.bundle)}, gives {best.rate:.3g} steps/s, {less} less."


def _faster(scene: Scene, column: Column, best: Column) -> str:
    """Describe a plan that is faster than the present one, and why the job does not run by it."""
    own, other = column.bundle, best.bundle
    more = percent(best.rate / column.rate - 1)
    text = f" {_named(other)} would give {best.rate:.3g} steps/s, {more} more"
    if best.share > 0:
        return f"{text}; it gets {percent(best.share)} of the time."
    holders, count = scene.pools[other.worker_type].others(scene, HOLDERS_NAMED)
    if not holders:
        return f"{text}, but the policy gives it no time."
    if own.worker_type != other.worker_type:
        return f"{text}, but the policy gives the {other.worker_type} to {jobs(holders, count)}."
    each, own_each = best.rate / other.gpus, column.rate / own.gpus
    less = f" but {each:.3g} instead of {own_each:.3g} from each GPU," if each < own_each else ""
    return f"{text},{less} and the policy divides the {own.worker_type} among this job and {jobs(holders, count)}."


def _too_wide(scene: Scene, column: Column) -> str:
    """Name the fastest plan that would be faster than the present one, if there were enough GPUs for it now."""
    state, spec = scene.state, scene.job.spec
    possible = {(each.bundle.worker_type, each.bundle.gpus) for each in scene.columns if scene.possible(each)}
    rates = {
        Bundle((scene.job.id,), plan.worker_type, plan.gpus, plan.label): rate_of(
            state, spec, plan.worker_type, plan.gpus
        )[0]
        for plan in plans_left(state, spec)
        if (plan.worker_type, plan.gpus) not in possible
    }
    bundle = max(rates, key=lambda each: rates[each], default=None)
    if bundle is None or rates[bundle] <= column.rate:
        return ""
    pool = scene.pools.get(bundle.worker_type)
    usable = 0 if pool is None else pool.fitting
    return (
        f" {_named(bundle)} would give {rates[bundle]:.3g} steps/s, but the job can use only {usable} "
        f"{bundle.worker_type} now."
    )


def _named(bundle: Bundle) -> str:
    return f"{bundle.label} on {bundle.gpus} × {bundle.worker_type}"
