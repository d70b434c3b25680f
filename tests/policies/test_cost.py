"""`throughput_per_cost` and `min_cost`, on problems whose costs are easily worked out by hand."""

import numpy as np
import pytest

from policies.errors import MissingFacts, ProblemError
from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand, together
from tests.support.wording import Wording

# For every job the second type is twice as fast, at three times the price.
TWO = {"capacity": [2, 2], "price_per_gpu_hour": [1.0, 3.0]}


def test_throughput_per_cost_prefers_the_type_with_cheaper_steps() -> None:
    """1 step/s at a price of 1 is better than 2 steps/s at 3; a job with no room on the first type uses the second."""
    alone_answer = resolve("throughput_per_cost")(Problem.from_rates([[1.0, 2.0]], 1, **TWO))
    assert alone_answer.time_share == pytest.approx([1.0, 0.0], abs=1e-6)
    crowded = resolve("throughput_per_cost")(Problem.from_rates([[1.0, 2.0]] * 3, 1, **TWO))
    assert crowded.value == pytest.approx(1 + 1 + 2 / 3, rel=1e-6)


def test_min_cost_uses_an_expensive_type_only_with_a_premium() -> None:
    """On the second type a step costs 1.5 times as much: the type is used with a premium of 0.5, but not by default."""
    problem = Problem.from_rates([[1.0, 2.0]] * 3, 1, **TWO)
    frugal = resolve("min_cost")(problem)
    assert frugal.time_share.reshape(3, 2)[:, 1] == pytest.approx(0.0, abs=1e-9)
    # Two jobs, at half of their best rate.
    assert frugal.value == pytest.approx(1.0, rel=1e-6)
    assert frugal.backfill.reshape(3, 2).tolist() == [[True, False]] * 3
    generous = resolve("min_cost(premium=0.5)")(problem)
    assert generous.value == pytest.approx(2.5, rel=1e-6)
    assert generous.backfill.all()


def test_the_cheaper_of_two_affordable_types_is_used(wording: Wording) -> None:
    """Both types are equally fast, and the price of either is within the premium: the cheaper one is used.

    The note gives the cost.
    """
    problem = Problem.from_rates([[1.0, 1.0]], 1, [1, 1], price_per_gpu_hour=[1.05, 1.0])
    answer = resolve("min_cost")(problem)
    assert answer.time_share == pytest.approx([0.0, 1.0], abs=1e-5)
    (note,) = answer.notes
    assert " 1 " in note
    wording(note)


def test_a_pair_shares_a_gpu_if_that_is_cheaper() -> None:
    """In a pair, a and b each pay for half a GPU and do 0.6 steps/s: a step costs 0.5 / 0.6, which is less than 1."""
    problem = by_hand(
        {"gpu": 1.0},
        *(alone(job, "gpu", 1.0) for job in "ab"),
        together(("a", "b"), "gpu", (0.6, 0.6)),
        price_per_gpu_hour=np.array([1.0]),
    )
    answer = resolve("min_cost+packing")(problem)
    assert answer.time_share == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)
    assert answer.value == pytest.approx(1.2, rel=1e-6)


@pytest.mark.parametrize("spec", ["min_cost", "throughput_per_cost"])
def test_prices_must_be_known(spec: str) -> None:
    """The error names the types without a price; a type without GPUs needs none."""
    rates = [[1.0, 1.0, 1.0]]
    kinds = ["a100", "v100", "k80"]
    problem = Problem.from_rates(
        rates, 1, [1, 1, 1], worker_types=kinds, price_per_gpu_hour=[np.nan, 1.0, np.nan]
    )
    with pytest.raises(MissingFacts, match=rf"{spec} needs price_per_gpu_hour.*'a100', 'k80'"):
        resolve(spec)(problem)
    gone = Problem.from_rates(
        rates, 1, [0, 1, 0], worker_types=kinds, price_per_gpu_hour=[np.nan, 1.0, np.nan]
    )
    assert resolve(spec)(gone).time_share == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_a_type_that_costs_nothing() -> None:
    """At a price of 0 the steps per cost are unbounded, so throughput_per_cost refuses; min_cost takes that type."""
    problem = Problem.from_rates(
        [[1.0, 5.0]], 1, [1, 1], worker_types=["own", "cloud"], price_per_gpu_hour=[0.0, 1.0]
    )
    with pytest.raises(ProblemError, match="'own' costs nothing"):
        resolve("throughput_per_cost")(problem)
    assert resolve("min_cost")(problem).time_share == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("premium", ["-0.1", "'a lot'", "true", "1e999"])
def test_a_premium_is_a_number(premium: str) -> None:
    """A negative, infinite or non-numeric premium is refused, and the error names the parameter."""
    with pytest.raises(ProblemError, match="min_cost: premium is"):
        resolve(f"min_cost(premium={premium})")(Problem.from_rates([[1.0]], 1, [1], price_per_gpu_hour=1.0))


def test_tiny_capacities() -> None:
    """Even if there are only millionths of GPUs, the first stage reports the exact value of its shares.

    Otherwise the second stage could not keep that value as a lower bound.
    """
    problem = Problem.from_rates([[3.0, 2.0]], 2, [2e-6, 3e-6], price_per_gpu_hour=[2.0, 1.0])
    answer = resolve("min_cost(premium=1)")(problem)
    assert answer.optimal
    assert answer.value == pytest.approx(2 * (1e-6 + 1.5e-6 * 2 / 3), rel=1e-2)
