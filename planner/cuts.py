"""The best cut of a model of unequal layers: the one that fits into memory and whose slowest stage is fastest."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from planner.balance import Cut, SpanCosts, best_cut, ends, greatest_of, reach, spans, until
from planner.cluster import Gpu
from planner.costs import in_flight, layer_costs, stays_in_node, transfer_s, weight_bytes
from planner.figures import Model
from planner.graph import Floats, Ints
from planner.plan import Plan


def best_borders(model: Model, gpu: Gpu, plan: Plan, microbatches: int) -> Ints:
    """Return the first layer of each stage, and the end.

    If no cut fits, return the one that needs least memory. With chunks, memory does not decide about the cut.
    """
    costs = _StageCosts(model, gpu, plan, microbatches)
    fastest = costs.best(costs.seconds, costs.usual_s)
    if plan.chunks > 1 or costs.fits(fastest.borders):
        return fastest.borders
    leanest = costs.best(costs.memory_within, costs.usual_bytes)
    if leanest.greatest > gpu.usable_bytes:
        return leanest.borders
    return costs.best(costs.seconds_if_it_fits, fastest.greatest).borders


class _StageCosts:
    """The times and the memory of all stages that a plan may have, by span of layers and stages behind."""

    def __init__(self, model: Model, gpu: Gpu, plan: Plan, microbatches: int) -> None:
        figures = model.figures(gpu, plan.microbatch, plan.tensor)
        layers = layer_costs(figures, plan)
        self._gpu, self._stages, self._count = gpu, plan.stages, len(layers.compute_s)
        self._work_s = until(layers.compute_s + layers.exchange_s)
        self._parameters, self._kept_bytes = until(figures.parameters), until(layers.kept_bytes)
        self._tied, self._working_bytes = figures.tied, layers.working_bytes
        self._input_bytes = layers.input_bytes
        # By whether two stages share a node, and border: how long each of them takes for their transfers.
        self._hops_s = {
            within: np.concatenate([[0.0], transfer_s(layers.output_bytes[:-1], gpu, within), [0.0]])
            for within in (False, True)
        }
        behind = np.arange(plan.stages)
        sender = (plan.stages - 1 - behind) % plan.pipeline
        self._sends_within = stays_in_node(gpu, plan, sender, (sender + 1) % plan.pipeline).tolist()
        self._weight_bytes = weight_bytes(model, plan, behind)
        self._in_flight = in_flight(plan, microbatches, behind)
        # What several stages share is computed once.
        self._columns_within = cache(lambda limit: reach(self._work_s, limit))
        self._seconds_of = cache(self._seconds)
        self._sizes_of = cache(self._sizes)

    @property
    def usual_s(self) -> float:
        """About the time of the slowest stage: the mean, or the work of the largest layer."""
        return self._usual(self._work_s)

    @property
    def usual_bytes(self) -> float:
        """About the memory of the fullest stage."""
        return self._usual(self._memory_until(self._stages // 2))

    def _usual(self, sums: Floats) -> float:
        return float(max(sums[-1] / self._stages, np.diff(sums).max()))

    def best(self, costs: SpanCosts, estimate: float) -> Cut:
        """Return the cut whose greatest cost of a stage is least."""
        return best_cut(costs, self._count, self._stages, estimate)

    def seconds(self, behind: int, limit: float) -> Floats:
        """Return the time of each stage whose work is within a limit."""
        receives, sends = self._sends_within[min(behind + 1, self._stages - 1)], self._sends_within[behind]
        return self._seconds_of(self._columns_within(limit), receives, sends)

    def seconds_if_it_fits(self, behind: int, limit: float) -> Floats:
        """Return the time of each stage whose work is within a limit; infinity if it does not fit into memory."""
        seconds = self.seconds(behind, limit)
        return np.where(self._memory(behind, seconds.shape[1]) > self._gpu.usable_bytes, np.inf, seconds)

    def memory_within(self, behind: int, limit: float) -> Floats:
        """Return the memory of each stage that needs no more than a limit."""
        shared = self._weight_bytes[behind] * sum(count for *_, count in self._tied)
        return self._memory(behind, reach(self._memory_until(behind), limit + shared))

    def fits(self, borders: Ints) -> bool:
        """Return whether all stages of a cut fit into memory."""
        first, behind = borders[:-1], np.arange(self._stages)[::-1]
        parameters = np.diff(self._parameters[borders])
        for stage, (begin, end) in enumerate(pairwise(borders)):
            parameters[stage] -= sum(count for low, high, count in self._tied if begin <= low and high < end)
        kept_bytes = np.diff(self._kept_bytes[borders]) + self._input_bytes[first]
        memory = self._weight_bytes[behind] * parameters + self._in_flight[behind] * kept_bytes
        return bool(
            np.all(memory + np.maximum.reduceat(self._working_bytes, first) <= self._gpu.usable_bytes)
        )

    def _seconds(self, columns: int, receives_within: bool, sends_within: bool) -> Floats:
        total: Floats = spans(self._work_s, columns) + self._hops_s[receives_within][:-1, None]
        total += ends(self._hops_s[sends_within], columns, 0.0)
        return total

    def _memory_until(self, behind: int) -> Floats:
        """Return the memory for the layers before each border, without what stages need while they compute."""
        total: Floats = (
            self._weight_bytes[behind] * self._parameters + self._in_flight[behind] * self._kept_bytes
        )
        return total

    def _memory(self, behind: int, columns: int) -> Floats:
        parameters, kept_bytes, working_bytes = self._sizes_of(columns)
        total: Floats = self._weight_bytes[behind] * parameters
        total += self._in_flight[behind] * kept_bytes
        total += working_bytes
        return total

    def _sizes(self, columns: int) -> tuple[Floats, Floats, Floats]:
        """Return parameters, kept bytes and working memory; parameters that layers of a stage share count once."""
        parameters = spans(self._parameters, columns)
        for first, later, count in self._tied:
            rows = np.arange(first + 1)
            parameters[: first + 1] -= count * (np.arange(columns) >= (later - rows)[:, None])
        kept_bytes = spans(self._kept_bytes, columns) + self._input_bytes[:, None]
        return parameters, kept_bytes, greatest_of(self._working_bytes, columns)
