"""Why a plan is the best one: what it spends its time on, what limits it, and what became of the others."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NamedTuple

from planner.cluster import Gpu
from planner.costs import cost_of
from planner.errors import NothingFits, PlanError
from planner.figures import Model
from planner.plan import Plan, read_plan
from planner.search import ALLOWED, Allowed, Priced, best_plan, evaluate, fits, plans, why_not
from planner.simulate import Simulator

# The worker types whose published runs the constants of time are fitted to.
CALIBRATED = ("a100",)


class Pruned(NamedTuple):
    """The other plans for one number of GPUs."""

    priced: int
    too_large: int
    # The fastest of the plans with another division of the GPUs; None if there is no other that fits.
    second: Priced | None


def pruned(
    model: Model,
    gpu: Gpu,
    best: Priced,
    batch: int,
    allowed: Allowed = ALLOWED,
    simulator: Simulator | None = None,
) -> Pruned:
    """Return how many plans were priced beside the best one, and how many of them need too much memory.

    The second one is chosen by closed forms. With a simulator, it has its simulated time, as the best one has.
    """
    count = too_large = 0
    second: Priced | None = None
    for plan in plans(model, gpu, best.plan.gpus, batch, allowed):
        cost = cost_of(model, gpu, plan, batch)
        count += 1
        if not fits(cost, gpu):
            too_large += 1
        elif _division(plan) != _division(best.plan) and (second is None or cost.step_s < second.cost.step_s):
            second = Priced(plan, cost)
    if second is not None and simulator is not None:
        simulated = simulator.cost(second.plan, second.cost, second.plan.microbatches(batch))
        second = Priced(second.plan, simulated)
    return Pruned(count, too_large, second)


def _division(plan: Plan) -> tuple[int, int, int]:
    return plan.tensor, plan.pipeline, plan.data


def limits(model: Model, gpu: Gpu, best: Priced, batch: int, allowed: Allowed = ALLOWED) -> dict[str, float]:
    """Return by which part of itself the step would be shorter without each limit, the greatest first.

    `memory`: the best plan on GPUs with any amount of it. `network`: no exchange takes time. `bubble`: no GPU waits
    for the pipeline. Memory and network by closed forms, also if the time of the best plan was simulated.
    """
    cost, closed = best.cost, cost_of(model, gpu, best.plan, batch)
    # The closed forms may put another plan first than the simulation does, so both sides have the best plan by them.
    roomy = best_plan(model, replace(gpu, memory_bytes=1e18), best.plan.gpus, batch, allowed).cost
    limited = roomy if fits(roomy, gpu) else best_plan(model, gpu, best.plan.gpus, batch, allowed).cost
    swift = replace(gpu, link_bytes_per_s=1e30, network_bytes_per_s=1e30)
    gains = {
        "memory": 1 - roomy.step_s / limited.step_s,
        "network": 1 - cost_of(model, swift, best.plan, batch).step_s / closed.step_s,
        "bubble": cost.bubble_s / cost.step_s,
    }
    return dict(sorted(gains.items(), key=lambda item: -item[1]))


def reason_against(
    model: Model, gpu: Gpu, label: str, batch: int, allowed: Allowed = ALLOWED
) -> tuple[str, Priced | None]:
    """Return why a plan is not the best for its number of GPUs, in words, and the plan with its cost if it can run.

    Parts that the label leaves open, such as the microbatch, are chosen as well as possible. Raise BadPlan if the text
    is not the label of a plan.
    """
    wanted = read_plan(label)
    stated = set(re.findall(r"[bvr]", re.sub(r"gpipe|1f1b|2bw|stash", "", label)))
    schedules = (wanted.schedule,) if wanted.schedule not in ALLOWED.schedules else allowed.schedules
    candidates = [
        Priced(plan, cost_of(model, gpu, plan, batch))
        for plan in plans(model, gpu, wanted.gpus, batch, Allowed(schedules))
        if _division(plan) == _division(wanted) and _has(plan, wanted, stated)
    ]
    fitting = [priced for priced in candidates if fits(priced.cost, gpu)]
    if not fitting:
        try:
            leanest = evaluate(model, gpu, wanted, batch)
        except PlanError as error:
            return f"breaks a rule: {error.message}" + (f"; {error.hint}" if error.hint else ""), None
        lacking = why_not(leanest, gpu, wanted.gpus)
        if lacking:
            return lacking, None
        fitting = [leanest]
    own = min(fitting, key=lambda priced: priced.cost.step_s)
    try:
        best = best_plan(model, gpu, wanted.gpus, batch, allowed)
    except NothingFits:
        return "is the only kind of plan that fits", own
    if own.cost.step_s <= best.cost.step_s:
        return f"is the best plan for {wanted.gpus} × {gpu.name}", own
    slower = own.cost.step_s / best.cost.step_s - 1
    return f"is {_percent(slower)} slower than {best.plan.label}: {_differences(own, best)}", own


def _has(plan: Plan, wanted: Plan, stated: set[str]) -> bool:
    """Return whether a plan has the parts that a label states."""
    return (
        ("b" not in stated or plan.microbatch == wanted.microbatch)
        and ("v" not in stated or plan.chunks == wanted.chunks)
        and ("r" not in stated or plan.recompute)
    )


def _differences(own: Priced, best: Priced) -> str:
    """Return the parts of the step that take longer, as parts of the best step; the greatest first."""
    names = {
        "compute_s": "computing",
        "bubble_s": "waiting for the pipeline",
        "tensor_s": "exchanging in tensor groups",
        "pipeline_s": "exchanging between stages",
        "data_s": "exchanging gradients",
    }
    longer = {
        name: (getattr(own.cost, field) - getattr(best.cost, field)) / best.cost.step_s
        for field, name in names.items()
    }
    ordered = sorted(longer.items(), key=lambda item: -item[1])
    return ", ".join(f"{_percent(part, '+')} {name}" for name, part in ordered[:2] if part > 0)


def _percent(part: float, sign: str = "") -> str:
    digits = max(0, 1 - math.floor(math.log10(abs(100 * part)))) if part else 0
    return f"{100 * part:{sign}.{min(digits, 2)}f} %"
