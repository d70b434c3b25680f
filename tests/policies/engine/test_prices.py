"""`Allocation.price`: the gain in value from one more GPU of a type, while the reference rates stay fixed.

Prices are compared with the slopes of another formulation's optimum for a little more and a little less capacity. If
the two slopes differ (at a corner of the optimum), any price between them is right.
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

# For each policy, its value in the cluster `elsewhere`, measured against P_m and I_m of the cluster `here`.
VALUES: dict[str, Callable[[Problem, Problem], float]] = {
    "las": lambda elsewhere, here: f.las(elsewhere, f.proportional(here)).value,
    # The value of water filling is its first level.
    "water_filling": lambda elsewhere, here: f.las(elsewhere, f.proportional(here)).value,
    "makespan": lambda elsewhere, here: f.makespan(elsewhere).value,
    "ftf": lambda elsewhere, here: f.ftf(elsewhere, f.isolated(here)).value,
    "max_throughput": lambda elsewhere, here: f.max_throughput(elsewhere).value,
    "max_throughput(raw=true)": lambda elsewhere, here: f.max_throughput(elsewhere, raw=True).value,
    "sjf": lambda elsewhere, here: f.sjf(elsewhere).value,
    "throughput_per_cost": lambda elsewhere, here: f.throughput_per_cost(elsewhere).value,
    "min_cost": lambda elsewhere, here: f.min_cost(elsewhere).value,
}


def with_more(problem: Problem, kind: int, gpus: float) -> Problem:
    """The problem with a little more, or less, of one type."""
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
    # The price of water filling is that of the first scarce level, which may be above the lowest.
    if spec == "water_filling":
        assume(resolve("las")(problem).price.max() > 1e-6)
    for kind, price in enumerate(answer.price):
        more = (value(with_more(problem, kind, STEP), problem) - here) / STEP
        less = (here - value(with_more(problem, kind, -STEP), problem)) / STEP
        room = 2e-3 * max(abs(more), abs(less)) + 1e-4 * here
        assert min(more, less) - room <= price <= max(more, less) + room


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        # λ = c / 2
        ("las", [0.5]),
        ("water_filling", [0.5]),
        # 200 s / c
        ("makespan", [-200.0]),
        # ρ = (t + R / E) / (R / I) with t = 0, E = c / 2 and I = 1/2: 1 / c
        ("ftf", [-1.0]),
        # One more GPU is one more job at its best.
        ("max_throughput", [1.0]),
        # One more GPU is two more steps per second.
        ("max_throughput(raw=true)", [2.0]),
        # 2 / 200 of a job per second
        ("sjf", [0.01]),
        # Two steps per second for half a unit of money.
        ("throughput_per_cost", [4.0]),
        ("min_cost", [1.0]),
        # Σ log E rises by 1 / (c / 2) · 1 / 2 per job.
        ("strategy_proof", [2.0]),
    ],
)
def test_price_by_hand(spec: str, price: list[float]) -> None:
    """Two jobs of 2 steps/s share one GPU, each with 200 steps to go."""
    problem = Problem.from_rates([[2.0], [2.0]], 1, [1], steps_left=200.0, price_per_gpu_hour=0.5)
    assert resolve(spec)(problem).price == pytest.approx(price, rel=1e-4)


@pytest.mark.parametrize("spec", [*VALUES, "strategy_proof"])
def test_plentiful_gpus_have_price_zero(spec: str) -> None:
    """If GPUs of a type are left over, one more GPU of that type adds nothing."""
    problem = Problem.from_rates([[1.0, 2.0]], 1, [5, 5], steps_left=10.0, price_per_gpu_hour=[3.0, 1.0])
    assert resolve(spec)(problem).price == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("spec", ["fifo", "isolated", "allox", "gandiva"])
def test_rules_have_no_prices(spec: str) -> None:
    """If no program is solved, the price is NaN, not 0."""
    problem = Problem.from_rates([[1.0, 2.0]], 1, [5, 5], steps_left=10.0)
    assert np.isnan(resolve(spec)(problem).price).all()
