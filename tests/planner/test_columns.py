"""Plans as columns: which can be left out without a loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.columns import Column, columns, hull
from planner.search import best_plan, widths
from planner.transformer import Transformer
from policies.problem import Problem
from policies.registry import resolve
from tests.planner.gpus import A100
from tests.support.problems import alone, by_hand

MODEL = Transformer(layers=24, hidden=2304, heads=24, sequence=2048, vocabulary=51200)


def test_a_width_below_the_line_is_left_out():
    """Four GPUs do no more than a mix of two and eight with the same GPU time; a rate just below the line is kept."""
    assert hull([1, 2, 4, 8], [1.0, 2.0, 2.5, 5.0]) == pytest.approx([1, 2, 3, 5])
    assert hull([1, 2], [1.0, 4.0]) == pytest.approx([2, 4])
    assert hull([2, 4], [4.0, 3.0]) == pytest.approx([4, 4])
    assert hull([], []) == []


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8))
def test_no_mix_is_above_the_line(rates):
    """The line is the best of all narrower widths and of all mixes of two widths, one of which may be none."""
    sizes = [2**n for n in range(len(rates))]
    lines = hull(sizes, rates)
    points = [(0, 0.0), *zip(sizes, rates, strict=True)]
    for width, line in zip(sizes, lines, strict=True):
        mixes = [
            low[1] + (high[1] - low[1]) * (width - low[0]) / (high[0] - low[0])
            for low in points
            for high in points
            if low[0] < width <= high[0]
        ]
        narrower = [rate for size, rate in points if size <= width]
        assert line == pytest.approx(max(*mixes, *narrower), rel=1e-9)


def test_plans_become_columns():
    """The fields of a problem file's variants: type, GPUs, updates per second, and the plan as a label."""
    plans = [best_plan(MODEL, A100, gpus, 512) for gpus in widths(A100, 64)]
    every = columns("a100", plans, kept_below=1.0)
    assert every == [Column("a100", each.plan.gpus, 1 / each.cost.step_s, each.plan.label) for each in plans]
    needed = columns("a100", plans)
    assert set(needed) <= set(every)
    assert needed[-1].gpus == 64


@pytest.mark.parametrize("policy", ["las", "max_throughput(raw=true)", "makespan", "throughput_per_cost"])
@pytest.mark.parametrize("seed", range(10))
def test_no_allocation_needs_the_others(policy, seed):
    """The value of the best allocation is the same with all widths and with those on the line."""
    random = np.random.default_rng(seed)
    ways, on_the_line = [], []
    for job in "abcd":
        for worker_type in ("a100", "v100"):
            sizes, rates = [1, 2, 4, 8], random.uniform(0.5, 8.0, 4) * random.uniform(0.2, 1.0)
            for size, rate, line in zip(sizes, rates.tolist(), hull(sizes, rates.tolist()), strict=True):
                way = alone(job, worker_type, rate, size)
                ways.append(way)
                on_the_line += [way] if rate >= line * (1 - 1e-12) else []
    facts = {
        "steps_left": random.uniform(10, 1000, 4),
        "deadline_s": np.full(4, 1e6),
        "price_per_gpu_hour": np.array([3.0, 1.0]),
    }
    values = [_value(by_hand({"a100": 8, "v100": 8}, *each, **facts), policy) for each in (ways, on_the_line)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def _value(problem: Problem, policy: str) -> float:
    return resolve(policy)(problem).value
