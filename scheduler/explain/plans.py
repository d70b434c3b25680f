"""Descriptions of the plan by which a job runs, and of its plans that ran out of memory."""

from __future__ import annotations

from scheduler.core.planning.planned_rates import is_struck_out
from scheduler.core.state import SchedulerState
from scheduler.explain.scene import Scene
from scheduler.explain.wording import listed, percent
from scheduler.model.jobs import Job
from scheduler.model.plans import Plan


def about_plans(state: SchedulerState, job: Job, scene: Scene | None) -> str:
    """Describe why a job runs by its present plan, and which plans it no longer uses; empty if it has no plans."""
    if not job.spec.plans or job.is_terminal:
        return ""
    holding = state.leases.get(job.lease or "")
    chosen = None if holding is None else job.spec.plan_for(holding.bundle.worker_type, holding.bundle.gpus)
    text = ""
    if holding is not None and chosen is not None and scene is not None:
        column = next((column for column in scene.columns if column.bundle == holding.bundle), None)
        rate = 0.0 if column is None else column.rate
        share = 0.0 if column is None else column.share
        others = sum(other.share > 0 for other in scene.columns if other is not column)
        measured = "" if f"{rate:.3g}" == f"{chosen.rate:.3g}" else f", by measurements {rate:.3g}"
        rest = f", and {others} other{'s' if others > 1 else ''} the rest" if others else ""
        text = (
            f" It runs by plan {chosen.label}, at a predicted {chosen.rate:.3g} steps/s{measured}; "
            f"the allocation gives this plan {percent(share)} of the time{rest}."
        )
    struck = [_named(plan) for plan in job.spec.plans if is_struck_out(state, job.spec, plan)]
    return text + (f" Not used again, because memory ran out: {listed(struck)}." if struck else "")


def _named(plan: Plan) -> str:
    return f"{plan.label} on {plan.gpus} × {plan.worker_type}"
