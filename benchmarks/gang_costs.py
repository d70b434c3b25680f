"""The costs of gangs over several worker types: pipelines whose stages stand on one type after the other.

The planner makes no such plans; `benchmarks.mixed_gangs` asks what they would be worth. They are priced with the
planner's own costs: layers are cut so that the slowest stage is fastest, each stage computes at the speed of its type,
stages of one type send over the link of their node and others over the slower network of the two, and the update is
simulated action by action. Where a cost would need more than that, it is the least that it can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from planner.balance import best_cut, ends, greatest_of, spans, until
from planner.cluster import Gpu
from planner.costs import Cost, StageTimes, cost_of, in_flight, layer_costs, transfer_s, weight_bytes
from planner.errors import BadPlan
from planner.graph import Floats, Ints
from planner.plan import Plan
from planner.profile import Layer, Profile, Times
from planner.search import ALLOWED, plans
from planner.simulate import Simulator
from planner.transformer import Transformer

# Nodes with room for every gang: how its types are joined is priced apart.
GANG_GPUS_MAX = 64


class Part(NamedTuple):
    """GPUs of one type, within one node."""

    gpu: Gpu
    gpus: int


def profile_of(model: Transformer, gpus: Sequence[Gpu], batch: int) -> Profile:
    """Return a transformer as a profile, whose stages may have unequal numbers of layers."""
    counts = [2**n for n in range(batch.bit_length()) if batch % 2**n == 0]
    groups = [size for size in (1, 2, 4, 8) if model.splits_over(size)]
    figures = {(gpu, t, b): model.figures(gpu, b, t) for gpu in gpus for t in groups for b in counts}

    def times(layer: int, tensor: int) -> dict[str, Times]:
        by_type = {}
        for gpu in gpus:
            each = [figures[gpu, tensor, count] for count in counts]
            seconds = [[row.forward_s[layer], row.backward_s[layer]] for row in each]
            by_type[gpu.name] = Times(np.array(counts, float), np.array(seconds).T)
        return by_type

    first = figures[gpus[0], 1, 1]
    # The two sums over a tensor group, of as many bytes as the layer sends on.
    summed = [0.0, *[2 * first.output_bytes[1]] * model.layers, 0.0]
    return Profile(
        name="transformer",
        layers=tuple(
            Layer(
                name=f"{layer}",
                parameters=first.parameters[layer],
                output_bytes=first.output_bytes[layer],
                stored_bytes=first.stored_bytes[layer],
                # Times are given, so that none is estimated from arithmetic.
                flops=0.0,
                times=times(layer, 1),
                tensor={size: (summed[layer], times(layer, size)) for size in groups if size > 1},
            )
            for layer in range(model.layers + 2)
        ),
        weight_bytes_per_parameter=model.weight_bytes_per_parameter,
        exchanged_bytes_per_parameter=model.exchanged_bytes_per_parameter,
        optimizer_bytes_per_parameter=model.state_bytes_per_parameter
        - model.weight_bytes_per_parameter
        - model.exchanged_bytes_per_parameter,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Gang(Profile):
    """A profiled model on parts of several types: its stages are cut for the types on which they stand."""

    parts: tuple[Part, ...]
    _cuts: dict[Plan, Ints] = field(default_factory=dict, repr=False)

    def owner(self, plan: Plan, stage: int) -> Gpu:
        """Return the type of the GPUs of a stage."""
        places = accumulate(part.gpus for part in self.parts)
        place = stage % plan.pipeline * plan.tensor * plan.data
        return next(part.gpu for part, end in zip(self.parts, places, strict=True) if place < end)

    def borders(self, gpu: Gpu, plan: Plan, microbatches: int) -> Ints:
        """Return the first layer of each stage, and the end: the cut whose slowest stage is fastest."""
        if plan not in self._cuts:
            count = len(self.layers)
            cut = best_cut(
                lambda behind, _: self._stage_s(plan, microbatches, behind), count, plan.stages, 1.0
            )
            if not math.isfinite(cut.greatest):
                raise BadPlan("does not fit", place=plan.label)
            self._cuts[plan] = cut.borders
        return self._cuts[plan]

    def _stage_s(self, plan: Plan, microbatches: int, behind: int) -> Floats:
        """Return the time of a stage for each span of layers; infinity if it does not fit, except with chunks."""
        stage, count = plan.stages - 1 - behind, len(self.layers)
        gpu = self.owner(plan, stage)
        figures = self.figures(gpu, plan.microbatch, plan.tensor)
        layers = layer_costs(figures, plan)
        hops_s = np.zeros((2, count + 1))
        for row, neighbour in enumerate((stage - 1, stage + 1)):
            if 0 <= neighbour < plan.stages:
                hops_s[row, 1:-1] = _hop_s(layers.output_bytes[:-1], gpu, self.owner(plan, neighbour))
        seconds: Floats = spans(until(layers.compute_s + layers.exchange_s), count) + hops_s[0][:-1, None]
        seconds += ends(hops_s[1], count, 0.0)
        if plan.chunks == 1:
            each = np.array([behind])
            memory = weight_bytes(self, plan, each) * spans(until(figures.parameters), count)
            kept_bytes = spans(until(layers.kept_bytes), count) + layers.input_bytes[:, None]
            memory += in_flight(plan, microbatches, each) * kept_bytes
            memory += greatest_of(layers.working_bytes, count)
            seconds[memory > gpu.usable_bytes] = np.inf
        return seconds


def gang_of(profile: Profile, parts: Sequence[tuple[Gpu, int]]) -> Gang:
    """Return a gang over these types and numbers of GPUs, in this order."""
    roomy = tuple(Part(replace(gpu, per_node=GANG_GPUS_MAX), gpus) for gpu, gpus in parts)
    known = {field.name: getattr(profile, field.name) for field in fields(Profile) if field.name[0] != "_"}
    return Gang(**known, parts=roomy)


def step_s(gang: Gang, batch: int, simulator: Simulator) -> float:
    """Return the time of an update by the fastest plan of a gang; infinity if none fits."""
    # As in the planner's search: the plan whose bound is least gets a closer bound, or its time.
    waiting: list[tuple[float, int, Plan, Cost | None]] = [
        (_least_s(gang, plan, batch), number, plan, None) for number, plan in enumerate(_plans(gang, batch))
    ]
    heapify(waiting)
    best_s = math.inf
    while waiting and waiting[0][0] < best_s:
        _, number, plan, cost = heappop(waiting)
        if cost is not None:
            best_s = min(best_s, simulator.cost(plan, cost, plan.microbatches(batch)).step_s)
        elif (cost := _cost_of(gang, plan, batch)) is not None:
            heappush(waiting, (cost.step_s, number, plan, cost))
    return best_s


def _plans(gang: Gang, batch: int) -> Iterator[Plan]:
    """Yield every plan for exactly the GPUs of a gang that puts no stage on two of its parts."""
    shared = math.gcd(*(part.gpus for part in gang.parts))
    roomiest = max((part.gpu for part in gang.parts), key=lambda gpu: gpu.memory_bytes)
    gpus = sum(part.gpus for part in gang.parts)
    for plan in plans(gang, replace(roomiest, per_node=shared), gpus, batch, ALLOWED):
        if shared % (plan.tensor * plan.data) == 0:
            yield plan


def _least_s(gang: Gang, plan: Plan, batch: int) -> float:
    """Return a time that no cut of the layers is below, even without waits and transfers.

    The work of the fullest GPU is at least any weighted mean of the parts' work per GPU. That mean is least if each
    layer goes to the part where its own addition is least.
    """
    group = plan.tensor * plan.data
    each_s = []
    for gpu, gpus in gang.parts:
        layers = layer_costs(gang.figures(gpu, plan.microbatch, plan.tensor), plan)
        each_s.append((layers.compute_s + layers.exchange_s) * group / gpus)
    weights = np.array([1 / row.sum() for row in each_s])
    mean_s = np.array(each_s) * (weights / weights.sum())[:, None]
    return plan.microbatches(batch) * float(mean_s.min(axis=0).sum())


def _cost_of(gang: Gang, plan: Plan, batch: int) -> Cost | None:
    """Return the cost of a plan without the waits for its pipeline; None if it does not fit."""
    try:
        costs = {gpu: cost_of(gang, gpu, plan, batch) for gpu, _ in gang.parts}
    except BadPlan:
        return None
    first, owners = costs[gang.parts[0].gpu], [gang.owner(plan, stage) for stage in range(plan.stages)]
    usable_bytes = [gpu.usable_bytes for gpu in owners[: plan.pipeline]]
    if np.any(first.memory_bytes > usable_bytes):
        return None
    times = _stage_times(gang, plan, first.borders, [costs[gpu].times for gpu in owners], owners)
    busy_s = times.total_s.reshape(plan.chunks, plan.pipeline).sum(axis=0).max()
    # The least that it can be, if the GPU with most parameters is not of the slower type.
    data_s = min(cost.data_s for cost in costs.values())
    return replace(
        first, step_s=plan.microbatches(batch) * float(busy_s) + data_s, data_s=data_s, times=times
    )


def _stage_times(
    gang: Gang, plan: Plan, borders: Ints, by_stage: Sequence[StageTimes], owners: Sequence[Gpu]
) -> StageTimes:
    """Return the times of each stage on its own type, with transfers between the types."""
    sent_bytes = gang.figures(owners[0], plan.microbatch, plan.tensor).output_bytes / plan.tensor
    transfers_s = np.zeros(plan.stages)
    for stage, last in enumerate(borders[1:-1] - 1):
        transfers_s[stage : stage + 2] += _hop_s(sent_bytes[last : last + 1], *owners[stage : stage + 2])
    compute_s, exchange_s, forward_s, own_s = (
        np.array([getattr(times, name)[stage] for stage, times in enumerate(by_stage)])
        for name in ("compute_s", "exchange_s", "forward_s", "transfer_s")
    )
    return StageTimes(
        compute_s=compute_s,
        exchange_s=exchange_s,
        transfer_s=transfers_s,
        forward_s=forward_s + (transfers_s - own_s) / 2,
    )


def _hop_s(sent_bytes: Floats, sender: Gpu, receiver: Gpu) -> Floats:
    """Return how long each of two neighbouring stages takes for both of their transfers."""
    slower = min(sender, receiver, key=lambda gpu: gpu.network_bytes_per_s)
    return transfer_s(sent_bytes, slower, within_node=sender == receiver)
