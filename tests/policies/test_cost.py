"""`throughput_per_cost` and `min_cost`: bills small enough to add up in the head."""

import numpy as np
import pytest

from policies.errors import MissingFacts, ProblemError
from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand, together
from tests.support.wording import Wording

# For every job the second type is twice as fast, at three times the price.
TWO = {"capacity": [2, 2], "price_per_gpu_hour": [1.0, 3.0]}


def test_per_cost_takes_the_cheaper_step() -> None:
    """1 step/s per 1 is better than 2 per 3; a job that finds no room there takes the other type."""
    alone_answer = resolve("throughput_per_cost")(Problem.from_rates([[1.0, 2.0]], 1, **TWO))
    assert alone_answer.time_share == pytest.approx([1.0, 0.0], abs=1e-6)
    crowded = resolve("throughput_per_cost")(Problem.from_rates([[1.0, 2.0]] * 3, 1, **TWO))
    assert crowded.value == pytest.approx(1 + 1 + 2 / 3, rel=1e-6)


def test_min_cost_does_not_buy_dear_steps() -> None:
    """On the second type a step costs 1.5 times as much, so it is used with a premium of 0.5, but not with 0.1."""
    problem = Problem.from_rates([[1.0, 2.0]] * 3, 1, **TWO)
    frugal = resolve("min_cost")(problem)
    assert frugal.time_share.reshape(3, 2)[:, 1] == pytest.approx(0.0, abs=1e-9)
    # Two jobs, at half of their best rate.
    assert frugal.value == pytest.approx(1.0, rel=1e-6)
    assert frugal.backfill.reshape(3, 2).tolist() == [[True, False]] * 3
    generous = resolve("min_cost(premium=0.5)")(problem)
    assert generous.value == pytest.approx(2.5, rel=1e-6)
    assert generous.backfill.all()


def test_the_least_bill_for_the_same_work(wording: Wording) -> None:
    """Both types do the same work within the premium, so the cheaper one does it; the notes give the cost."""
    problem = Problem.from_rates([[1.0, 1.0]], 1, [1, 1], price_per_gpu_hour=[1.05, 1.0])
    answer = resolve("min_cost")(problem)
    assert answer.time_share == pytest.approx([0.0, 1.0], abs=1e-5)
    (note,) = answer.notes
    assert " 1 " in note
    wording(note)


def test_pairs_halve_the_bill() -> None:
    """Together a and b each pay half a GPU for 0.6 of a step: per step that is 1/0.6 · 1/2 < 1, so they share."""
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
    """With price 0 steps per cost have no bound, and throughput_per_cost refuses; for min_cost 0 is cheapest."""
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


def test_a_hair_of_a_gpu() -> None:
    """The first stage reports the true worth of its shares; otherwise the second stage could not hold it."""
    problem = Problem.from_rates([[3.0, 2.0]], 2, [2e-6, 3e-6], price_per_gpu_hour=[2.0, 1.0])
    answer = resolve("min_cost(premium=1)")(problem)
    assert answer.optimal
    assert answer.value == pytest.approx(2 * (1e-6 + 1.5e-6 * 2 / 3), rel=1e-2)
