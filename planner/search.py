"""The best plan of a model for each number of GPUs: every plan that fits is priced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from planner.cluster import Gpu, gigabytes
from planner.costs import Cost, cost_of, layer_costs
from planner.errors import BadPlan, NothingFits
from planner.figures import Model
from planner.plan import Plan
from planner.simulate import Simulator

# No more GPUs than these are suggested where a model does not fit.
GPUS_MAX = 16_384


class Allowed(NamedTuple):
    """The plans that a search may return."""

    # By default, those that compute what one process computes, in the least time.
    schedules: Sequence[str] = ("1f1b", "interleaved")
    # The most GPUs over which a layer is divided; None: the GPUs of a node.
    tensor_max: int | None = None

    def least_batch(self, pipeline: int, data: int) -> int:
        """Return the smallest batch that so many replicas of a pipeline can divide."""
        return data * pipeline if self.schedules[0] == "2bw" else data


class Priced(NamedTuple):
    """A plan and its cost."""

    plan: Plan
    cost: Cost


ALLOWED = Allowed()


def best_plan(
    model: Model,
    gpu: Gpu,
    gpus: int,
    batch: int,
    allowed: Allowed = ALLOWED,
    simulator: Simulator | None = None,
) -> Priced:
    """Return the fastest plan for exactly so many GPUs; raise NothingFits if none fits into memory.

    With a simulator, simulated times are compared.
    """
    fastest = fastest_plan(model, gpu, gpus, batch, allowed, simulator)
    if fastest is None:
        raise nothing_fits(model, gpu, gpus, batch, allowed)
    return fastest


def fastest_plan(
    model: Model, gpu: Gpu, gpus: int, batch: int, allowed: Allowed, simulator: Simulator | None
) -> Priced | None:
    """Return the fastest plan for exactly so many GPUs; None if there is none: `nothing_fits` says why."""
    possible = [(_least_s(model, gpu, plan, batch), plan) for plan in plans(model, gpu, gpus, batch, allowed)]
    # The plan whose bound is least comes first. It gets a closer bound and waits again, until its time is known: then
    # no other plan is faster.
    waiting: list[tuple[float, int, Plan, Cost | None, bool]] = [
        (least_s, number, plan, None, False)
        for number, (least_s, plan) in enumerate(sorted(possible, key=itemgetter(0)))
    ]
    while waiting:
        _, number, plan, cost, is_known = heappop(waiting)
        if cost is None:
            cost = cost_of(model, gpu, plan, batch)
            if fits(cost, gpu):
                bound_s = cost.step_s if simulator is None else _bound_s(plan, cost)
                heappush(waiting, (bound_s, number, plan, cost, simulator is None))
        elif simulator is None or is_known:
            return Priced(plan, cost)
        else:
            cost = simulator.cost(plan, cost, plan.microbatches(batch))
            heappush(waiting, (cost.step_s, number, plan, cost, True))
    return None


def _least_s(model: Model, gpu: Gpu, plan: Plan, batch: int) -> float:
    """Return the time of an update without any waiting or transfer, if all stages took the same time."""
    layers = layer_costs(model.figures(gpu, plan.microbatch, plan.tensor), plan)
    return plan.microbatches(batch) / plan.pipeline * float((layers.compute_s + layers.exchange_s).sum())


def _bound_s(plan: Plan, cost: Cost) -> float:
    """Return a time that no simulation of the plan is below.

    Closed forms are never too long; but that of several chunks may be, if stages take unequal times.
    """
    return cost.step_s - cost.bubble_s if plan.chunks > 1 else cost.step_s


def fits(cost: Cost, gpu: Gpu) -> bool:
    """Return whether every stage fits into the memory of its GPUs."""
    return bool(cost.memory_bytes.max() <= gpu.usable_bytes)


def widths(gpu: Gpu, gpus: int) -> list[int]:
    """Return the numbers of GPUs that are worth a plan: powers of two up to a node, then whole nodes by doubling.

    The number of all GPUs is one of them.
    """
    within = [2**n for n in range(int(math.log2(gpu.per_node)) + 1)]
    doubled = [gpu.per_node * 2**n for n in range(max(0, gpus // gpu.per_node).bit_length())]
    return sorted({width for width in (*within, *doubled, gpus) if 1 <= width <= gpus})


def plans(model: Model, gpu: Gpu, gpus: int, batch: int, allowed: Allowed) -> Iterator[Plan]:
    """Yield the plans for exactly so many GPUs that break no rule and whose weights fit into memory."""
    weights = model.state_bytes_per_parameter * model.parameters
    for tensor, pipeline, data in _splits(model, gpu, gpus, allowed):
        if batch % data or weights / (tensor * pipeline) > gpu.usable_bytes:
            continue
        for microbatch in _powers_of_two(batch // data):
            yield from _variants(model, Plan(tensor, pipeline, data, microbatch), batch, allowed)


def _variants(model: Model, plan: Plan, batch: int, allowed: Allowed) -> Iterator[Plan]:
    """Yield a plan with every schedule, number of chunks, and with and without recomputation."""
    microbatches = batch // (plan.data * plan.microbatch)
    for schedule in allowed.schedules:
        if schedule == "2bw" and microbatches < plan.pipeline:
            continue
        chunks: Iterable[int] = (1,)
        if schedule == "interleaved":
            if plan.pipeline == 1 or microbatches % plan.pipeline:
                continue
            chunks = model.chunk_counts(plan.pipeline)
        for count in chunks:
            for recompute in (False, True):
                yield Plan(plan.tensor, plan.pipeline, plan.data, plan.microbatch, count, recompute, schedule)


def evaluate(model: Model, gpu: Gpu, plan: Plan, batch: int, simulator: Simulator | None = None) -> Priced:
    """Return the cost of one plan. If it does not fit into memory without recomputation, it recomputes."""
    cost = cost_of(model, gpu, plan, batch)
    if not (plan.recompute or fits(cost, gpu)):
        plan = replace(plan, recompute=True)
        cost = cost_of(model, gpu, plan, batch)
    if simulator is not None:
        cost = simulator.cost(plan, cost, plan.microbatches(batch))
    return Priced(plan, cost)


def why_not(priced: Priced, gpu: Gpu, gpus: int) -> str:
    """Return in words why a plan does not fit; empty if it does."""
    if fits(priced.cost, gpu):
        return ""
    memory = priced.cost.memory_bytes
    stage = int(memory.argmax())
    even = " even with recomputation" if priced.plan.recompute else ""
    return (
        f"does not fit on {gpus} × {gpu.name}: stage {stage + 1} of {priced.plan.pipeline} needs "
        f"{gigabytes(memory[stage])} GB of {gigabytes(gpu.usable_bytes)}{even}"
    )


def nothing_fits(model: Model, gpu: Gpu, gpus: int, batch: int, allowed: Allowed) -> NothingFits | BadPlan:
    """Return the error for a number of GPUs without a plan: why the leanest does not fit, and how many would do."""
    leanest = _leanest(model, gpu, gpus, batch, allowed)
    if leanest is None:
        return _cannot_be_divided(model, gpu, gpus, batch, allowed)
    if fits(leanest.cost, gpu):
        return BadPlan(
            f"no {allowed.schedules[0]} plan for {gpus} × {gpu.name} keeps the rules",
            hint="it needs at least 2 stages and chunks, and microbatches in multiples of the stages",
        )
    enough = (
        width
        for width in widths(gpu, GPUS_MAX)
        if width > gpus and (larger := _leanest(model, gpu, width, batch, allowed)) and fits(larger.cost, gpu)
    )
    width = next(enough, None)
    return NothingFits(why_not(leanest, gpu, gpus), hint=f"{width} would do" if width else "")


def _leanest(model: Model, gpu: Gpu, gpus: int, batch: int, allowed: Allowed) -> Priced | None:
    """Return the plan that needs least memory; None if no plan keeps the rules."""
    candidates = []
    for tensor, pipeline, data in _splits(model, gpu, gpus, allowed):
        plan = Plan(tensor, pipeline, data, 1, 1, True, allowed.schedules[0])
        if batch % data == 0 and batch >= allowed.least_batch(pipeline, data):
            candidates.append(Priced(plan, cost_of(model, gpu, plan, batch)))
    return min(candidates, key=lambda priced: float(priced.cost.memory_bytes.max()), default=None)


def _cannot_be_divided(model: Model, gpu: Gpu, gpus: int, batch: int, allowed: Allowed) -> BadPlan:
    """Return the error for a batch that no plan for so many GPUs can divide, with the nearest batches that would do."""
    # By plan: the samples of an update are a multiple of this, and at least that many.
    splits = _splits(model, gpu, gpus, allowed)
    sizes = [(data, allowed.least_batch(pipeline, data)) for _, pipeline, data in splits]
    lower = max((each for data, least in sizes if (each := batch // data * data) >= least), default=None)
    upper = min(max(least, -(-batch // data) * data) for data, least in sizes)
    replicas = sorted({data for data, _ in sizes})
    several = ", ".join([*map(str, replicas[:3]), *(["…"] if len(replicas) > 3 else [])])
    fault = f"{batch} is not a multiple of d·b, and d can only be {several}"
    if any(batch % data == 0 for data in replicas):
        fault = f"{batch} gives 2bw fewer microbatches than stages"
    nearest = ", ".join(str(each) for each in (lower, upper) if each)
    return BadPlan(f"batch {batch} on {gpus} × {gpu.name}: {fault}", hint=f"nearest: {nearest}")


def _splits(model: Model, gpu: Gpu, gpus: int, allowed: Allowed) -> Iterator[tuple[int, int, int]]:
    """Yield tensor, pipeline and data of all plans for exactly so many GPUs."""
    for tensor in _tensor_groups(model, gpu, gpus):
        if allowed.tensor_max is not None and tensor > allowed.tensor_max:
            continue
        for pipeline in filter(model.cuts_into, _divisors(gpus // tensor)):
            yield tensor, pipeline, gpus // tensor // pipeline


def _tensor_groups(model: Model, gpu: Gpu, gpus: int) -> list[int]:
    """Return the sizes of tensor groups that fill nodes without a rest."""
    return list(filter(model.splits_over, _divisors(math.gcd(gpus, gpu.per_node))))


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _powers_of_two(number: int) -> list[int]:
    """Return the powers of two that divide a number."""
    return [2**n for n in range(number.bit_length()) if number % 2**n == 0]
