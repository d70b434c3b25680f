"""The time of an update whose stages take unequal times: its computations, one after the other on each GPU.

The order of the computations comes from the runtime, through an argument: the planner imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from planner.costs import Cost
from planner.plan import Plan

# From so many times the stages on, each further microbatch takes as long as the slowest GPU works on it.
PERIODIC_FROM = 4


class Action(Protocol):
    """An action of `gavel.training.parallel.actions`, as far as a simulation reads it."""

    @property
    def kind(self) -> Any:
        """Its `value` is "forward" or "backward"; actions of other kinds take no time."""

    @property
    def microbatch(self) -> int:
        """The number of the microbatch."""

    @property
    def chunk(self) -> int:
        """The part of the GPU's layers."""


# By schedule, stages, microbatches and chunks: the computations of each GPU of a pipeline, in order.
ComputationsOf = Callable[[str, int, int, int], Sequence[Sequence[Action]]]


# By direction and stage: when each microbatch was done.
_Done = tuple[list[dict[int, float]], ...]


class _Computation(NamedTuple):
    is_forward: bool
    microbatch: int
    stage: int


class Simulator:
    """Simulates updates. The orders of computations are kept for further plans with the same schedule."""

    def __init__(self, computations_of: ComputationsOf) -> None:
        self._computations_of = computations_of
        self._orders: dict[tuple[str, int, int, int], list[list[_Computation]]] = {}

    def cost(self, plan: Plan, cost: Cost, microbatches: int) -> Cost:
        """Return the cost of a plan with the simulated time in place of the closed form."""
        # The closed forms of the other schedules are exact.
        if plan.schedule not in ("1f1b", "interleaved"):
            return cost
        backward_s = cost.times.total_s - cost.times.forward_s
        busy_s = cost.times.total_s.reshape(plan.chunks, plan.pipeline).sum(axis=0).max()
        least = PERIODIC_FROM * plan.pipeline
        # A multiple of the stages less, as interleaved schedules need it.
        later = max(0, (microbatches - least) // plan.pipeline * plan.pipeline)
        order = self._order(plan, microbatches - later)
        step_s = makespan_s(order, cost.times.forward_s.tolist(), backward_s.tolist()) + later * busy_s
        bubble_s = max(0.0, step_s - microbatches * busy_s)
        return replace(cost, step_s=float(step_s + cost.data_s), bubble_s=float(bubble_s))

    def _order(self, plan: Plan, microbatches: int) -> list[list[_Computation]]:
        key = (plan.schedule, plan.pipeline, microbatches, plan.chunks)
        if key not in self._orders:
            ranks = self._computations_of(*key)
            self._orders[key] = [
                list(_computations(rank, actions, len(ranks))) for rank, actions in enumerate(ranks)
            ]
        return self._orders[key]


def _computations(rank: int, actions: Sequence[Action], pipeline: int) -> Iterator[_Computation]:
    for action in actions:
        kind = action.kind.value
        if kind in ("forward", "backward"):
            yield _Computation(kind == "forward", action.microbatch, action.chunk * pipeline + rank)


def makespan_s(
    ranks: Sequence[Sequence[_Computation]], forward_s: Sequence[float], backward_s: Sequence[float]
) -> float:
    """Return when the last GPU is done. `forward_s` and `backward_s` are the times of a microbatch, by stage."""
    return max(_run(ranks, forward_s, backward_s)[1])


class Work(NamedTuple):
    """One forward or backward computation of a microbatch, with its stage."""

    is_forward: bool
    microbatch: int
    stage: int
    begin_s: float
    end_s: float


def timeline(plan: Plan, cost: Cost, microbatches: int, computations_of: ComputationsOf) -> list[list[Work]]:
    """Return, by GPU of a pipeline, its computations of an update, in order."""
    backward_s = (cost.times.total_s - cost.times.forward_s).tolist()
    forward_s = cost.times.forward_s.tolist()
    ranks = computations_of(plan.schedule, plan.pipeline, microbatches, plan.chunks)
    orders = [list(_computations(rank, actions, len(ranks))) for rank, actions in enumerate(ranks)]
    done, _ = _run(orders, forward_s, backward_s)
    return [[_work(each, done, forward_s, backward_s) for each in order] for order in orders]


def _work(
    computation: _Computation, done: _Done, forward_s: Sequence[float], backward_s: Sequence[float]
) -> Work:
    is_forward, microbatch, stage = computation
    end_s = done[is_forward][stage][microbatch]
    return Work(*computation, end_s - (forward_s if is_forward else backward_s)[stage], end_s)


def _run(
    ranks: Sequence[Sequence[_Computation]], forward_s: Sequence[float], backward_s: Sequence[float]
) -> tuple[_Done, list[float]]:
    """Return when each computation is done, and when each GPU is."""
    last_stage = len(forward_s) - 1
    done: _Done = tuple([{} for _ in forward_s] for _ in range(2))
    position, free_s = [0] * len(ranks), [0.0] * len(ranks)
    # The GPUs that may be able to go on.
    movable = list(range(len(ranks)))
    while movable:
        rank = movable.pop()
        order, now_s, begin = ranks[rank], free_s[rank], position[rank]
        for index in range(begin, len(order)):
            is_forward, microbatch, stage = order[index]
            if stage != (0 if is_forward else last_stage):
                arrived_s = done[is_forward][stage - 1 if is_forward else stage + 1].get(microbatch)
                if arrived_s is None:
                    break
                now_s = max(now_s, arrived_s)
            now_s += forward_s[stage] if is_forward else backward_s[stage]
            done[is_forward][stage][microbatch] = now_s
            position[rank] = index + 1
        free_s[rank] = now_s
        if position[rank] > begin:
            movable += [(rank + 1) % len(ranks), (rank - 1) % len(ranks)]
    return done, free_s
