"""`Allocation.price`: what one more GPU of a type would add to the value, references held fixed.

Compared with the slopes of another formulation's optimum on both sides. Where the two sides differ (at a
corner of the optimum) any price between them is one.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.problem import Problem
from policies.registry import resolve
from tests.support import formulations as f
from tests.support.problems import problems

STEP = 1e-3  # GPUs

# What the value would be in another cluster, measured against P_m and I_m of this one.
VALUES: dict[str, Callable[[Problem, Problem], float]] = {
    "las": lambda there, here: f.las(there, f.proportional(here)).value,
    "water_filling": lambda there, here: f.las(there, f.proportional(here)).value,  # its first level
    "makespan": lambda there, here: f.makespan(there).value,
    "ftf": lambda there, here: f.ftf(there, f.isolated(here)).value,
    "max_throughput": lambda there, here: f.max_throughput(there).value,
    "max_throughput(raw=true)": lambda there, here: f.max_throughput(there, raw=True).value,
    "sjf": lambda there, here: f.sjf(there).value,
    "throughput_per_cost": lambda there, here: f.throughput_per_cost(there).value,
    "min_cost": lambda there, here: f.min_cost(there).value,
}


def with_more(problem: Problem, kind: int, gpus: float) -> Problem:
    """The same cluster with a little more, or less, of one type."""
    capacity = problem.capacity.copy()
    capacity[kind] += gpus
    return replace(problem, capacity=capacity)


@pytest.mark.parametrize("spec", VALUES)
@settings(max_examples=8)
@given(data=st.data())
def test_price_is_a_slope(spec: str, data: st.DataObject) -> None:
    """The price of each type lies between the slopes of the optimum to its left and to its right."""
    off = dict.fromkeys(("empty_type", "tenants", "deadlines", "pairs"), st.just(False))
    small = {"jobs": st.integers(2, 6), "types": st.integers(1, 3), "widths": st.just((1,))}
    problem = f.visible(data.draw(problems(**off, **small)))
    assume(len(problem.jobs))
    answer = resolve(spec)(problem)
    assume(not any("cannot reach" in note for note in answer.notes))
    value = VALUES[spec]
    here = value(problem, problem)
    if spec == "water_filling":  # its price is that of the first scarce level, which may be above the lowest
        assume(resolve("las")(problem).price.max() > 1e-6)
    for kind, price in enumerate(answer.price):
        more = (value(with_more(problem, kind, STEP), problem) - here) / STEP
        less = (here - value(with_more(problem, kind, -STEP), problem)) / STEP
        room = 2e-3 * max(abs(more), abs(less)) + 1e-4 * here
        assert min(more, less) - room <= price <= max(more, less) + room


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        ("las", [0.5]),  # λ = c / 2
        ("water_filling", [0.5]),
        ("makespan", [-200.0]),  # 200 s / c
        ("ftf", [-1.0]),  # ρ = (t + R / E) / (R / I) with t = 0, E = c / 2 and I = 1/2: 1 / c
        ("max_throughput", [1.0]),  # one more GPU, one more job at its best
        ("max_throughput(raw=true)", [2.0]),  # which is two steps per second
        ("sjf", [0.01]),  # 2 / 200 of a job per second
        ("throughput_per_cost", [4.0]),  # two steps per second at half a unit of money
        ("min_cost", [1.0]),
        ("strategy_proof", [2.0]),  # Σ log E rises by 1 / (c / 2) · 1 / 2 per job
    ],
)
def test_price_by_hand(spec: str, price: list[float]) -> None:
    """Two jobs of 2 steps/s share one GPU, each with 200 steps to go."""
    problem = Problem.from_rates([[2.0], [2.0]], 1, [1], steps_left=200.0, price_per_gpu_hour=0.5)
    assert resolve(spec)(problem).price == pytest.approx(price, rel=1e-4)


@pytest.mark.parametrize("spec", [*VALUES, "strategy_proof"])
def test_what_is_plentiful_has_no_price(spec: str) -> None:
    """Where GPUs are left over, one more adds nothing."""
    problem = Problem.from_rates([[1.0, 2.0]], 1, [5, 5], steps_left=10.0, price_per_gpu_hour=[3.0, 1.0])
    assert resolve(spec)(problem).price == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("spec", ["fifo", "isolated", "allox", "gandiva"])
def test_rules_have_no_prices(spec: str) -> None:
    """Where no program is solved there is no price: NaN, not 0."""
    problem = Problem.from_rates([[1.0, 2.0]], 1, [5, 5], steps_left=10.0)
    assert np.isnan(resolve(spec)(problem).price).all()
