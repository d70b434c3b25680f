"""The timeline of a pipeline in a terminal."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gavel.cli.plans.timeline import COLUMNS_MAX, ROWS_MAX, timeline_lines
from gavel.training.parallel.actions import computations_of
from planner.costs import cost_of
from planner.plan import Plan
from planner.simulate import Work, timeline
from planner.transformer import Transformer
from tests.planner.gpus import A100
from tests.support.wording import Wording

MODEL = Transformer(layers=24, hidden=2304, heads=24, sequence=2048, vocabulary=51200)


def unit(plan: Plan, microbatches: int) -> list[list[Work]]:
    """Return the timeline with a forward of 1 s and a backward of 2 s per GPU, in the order of the schedule."""
    works: list[list[Work]] = [[] for _ in range(plan.pipeline)]
    ends: dict[tuple[bool, int, int], float] = {}
    orders = computations_of(plan.schedule, plan.pipeline, microbatches, plan.chunks)
    for _ in range(plan.stages * microbatches * 2):
        for rank, order in enumerate(orders):
            computations = [action for action in order if action.kind.value in ("forward", "backward")]
            if len(works[rank]) == len(computations):
                continue
            action = computations[len(works[rank])]
            is_forward, stage = action.kind.value == "forward", action.chunk * plan.pipeline + rank
            needed = is_forward, stage - 1 if is_forward else stage + 1, action.microbatch
            if 0 <= needed[1] < plan.stages and needed not in ends:
                continue
            begin_s = max(works[rank][-1].end_s if works[rank] else 0.0, ends.get(needed, 0.0))
            end_s = begin_s + (1 if is_forward else 2) / plan.chunks
            works[rank].append(Work(is_forward, action.microbatch, stage, begin_s, end_s))
            ends[is_forward, stage, action.microbatch] = end_s
    return works


@pytest.mark.parametrize(
    "plan",
    [
        Plan(pipeline=4),
        Plan(pipeline=4, schedule="gpipe"),
        Plan(pipeline=4, schedule="2bw"),
        Plan(pipeline=4, chunks=2, schedule="interleaved"),
        Plan(),
    ],
    ids=lambda plan: plan.label,
)
def test_each_gpu_has_a_row(plan: Plan, wording: Wording) -> None:
    """Digits are forward computations, shades backward ones, dots idle time."""
    wording("\n".join(timeline_lines(unit(plan, 8))))


def test_wide_and_deep_timelines_are_cut_with_words(wording: Wording) -> None:
    """The beginning of the first rows, and how much is left out."""
    lines = list(timeline_lines(unit(Plan(pipeline=20), 40)))
    assert len(lines) == ROWS_MAX + 3
    assert all(len(line.split()[-1]) == COLUMNS_MAX for line in lines[:ROWS_MAX])
    wording("\n".join(lines))


@pytest.mark.parametrize(
    "plan", [Plan(1, 4, 2, 4), Plan(2, 4, 2, 4, 2, False, "interleaved"), Plan(1, 1, 8, 4)]
)
def test_the_timeline_is_as_long_as_the_step(plan: Plan) -> None:
    """All but the exchange of gradients at the end of an update."""
    batch = 128
    cost = cost_of(MODEL, A100, plan, batch)
    works = timeline(plan, cost, plan.microbatches(batch), computations_of)
    end_s = max(row[-1].end_s for row in works)
    assert end_s == pytest.approx(cost.step_s - cost.data_s, rel=0.01)
    assert {work.stage for row in works for work in row} == set(range(plan.stages))
    assert all(before.end_s <= work.begin_s + 1e-9 for row in works for before, work in pairwise(row))
