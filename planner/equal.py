"""PipeDream-2BW's planner: stages of equal blocks, and microbatches as large as memory allows.

Source: arXiv:2006.09503, section 4 and appendix A. `planner.search` prices more plans than this one, so it is never
slower; 2BW's choices and its closed forms are there to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster import Gpu
from planner.costs import cost_of
from planner.errors import BadPlan
from planner.plan import Plan
from planner.search import Allowed, Priced, fits, plans
from planner.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The sizes of a model of equal blocks: its weights, and for one microbatch its activations and a stage's input."""

    weights_bytes: float
    activation_bytes: float
    input_bytes: float


def memory_bytes(blocks: Blocks, plan: Plan, microbatches: int) -> float:
    """Return the memory of the first stage by 2BW's closed forms: its weights, and what it keeps of microbatches."""
    depth = plan.pipeline
    versions = 2 if plan.schedule == "2bw" else 1
    in_flight = microbatches if plan.schedule == "gpipe" else depth
    activations = blocks.activation_bytes / depth
    kept = activations if plan.recompute else in_flight * activations
    return versions * blocks.weights_bytes / depth + kept + in_flight * blocks.input_bytes


def equal_plan(model: Transformer, gpu: Gpu, gpus: int, batch: int, schedule: str = "2bw") -> Priced:
    """Return the plan that 2BW's planner would choose: of each depth, the largest microbatch that fits is tried.

    Raise BadPlan if none fits.
    """
    largest: dict[tuple[int, bool], Priced] = {}
    for plan in plans(model, gpu, gpus, batch, Allowed((schedule,), tensor_max=1)):
        priced = Priced(plan, cost_of(model, gpu, plan, batch))
        key = plan.pipeline, plan.recompute
        if fits(priced.cost, gpu) and (key not in largest or plan.microbatch > largest[key].plan.microbatch):
            largest[key] = priced
    if not largest:
        raise BadPlan(f"no depth fits on {gpus} × {gpu.name}", hint="take more GPUs")
    return min(largest.values(), key=lambda priced: priced.cost.step_s)
