"""`water_filling`: levels that can be checked in the head."""

from collections.abc import Callable

import numpy as np
import pytest

from policies.engine import filling
from policies.problem import Floats, Problem
from policies.program import MET, Point, Program
from policies.registry import resolve
from tests.support.formulations import proportional
from tests.support.problems import alone, by_hand, together
from tests.support.references import rates


def levels(problem: Problem) -> np.ndarray:
    """The level of each job: g_m E_m / P_m."""
    share = resolve("water_filling")(problem).time_share
    return problem.jobs.gpus * rates(problem, share) / proportional(problem)


def test_three_levels() -> None:
    """Three jobs share one GPU, two share another, and one has the third: levels of 1, 1.5 and 3."""
    rate = np.zeros((6, 3))
    rate[:3, 0] = rate[3:5, 1] = rate[5, 2] = 1.0
    problem = Problem.from_rates(rate, 1, [1, 1, 1])
    assert levels(problem) == pytest.approx([1, 1, 1, 1.5, 1.5, 3], rel=1e-6)


def test_the_second_lowest_counts_too() -> None:
    """b and c share a GPU evenly, although c is three times as fast and max Σ E would give c all of it."""
    problem = Problem.from_rates([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]], 1, [1, 1])
    assert levels(problem) == pytest.approx([2.0, 1.0, 1.0], rel=1e-6)


def test_rising_by_weight() -> None:
    """Of weights 1, 2 and 5 on two GPUs, the job of weight 5 gets a whole GPU; the others divide the second 1 to 2."""
    problem = Problem.from_rates([[1.0]] * 3, 1, [2], weight=[1.0, 2.0, 5.0])
    assert levels(problem) == pytest.approx([1 / 3, 2 / 3, 1.0], rel=1e-6)


def test_value_is_the_lowest_level() -> None:
    """The value is the lowest weighted level, as for max-min fairness."""
    problem = Problem.from_rates([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], 1, [1, 1], weight=[1.0, 2.0, 4.0])
    assert resolve("water_filling")(problem).value == pytest.approx(resolve("las")(problem).value, rel=1e-6)


def test_a_level_met_within_tolerance_is_still_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level counts as met if a tenth of a millionth is missing; the floors of the last stage allow for that."""
    pair = together(("a", "b"), "v100", (0.8, 0.8))
    problem = by_hand({"v100": 1.0}, alone("a", "v100", 1.0), alone("b", "v100", 1.0), pair)
    exact = filling.furthest

    def too_far(program: Program, demand: Callable[[float], Floats], top: float) -> tuple[float, Point]:
        s = exact(program, demand, top)[0] * (1.0 + 0.5 * MET)
        return s, program.raise_all(demand(s))

    def improve(program: Program, point: Point, gain: Floats, floor: Floats) -> Point:
        assert program.raise_all(floor).value >= 1.0 - 1e-9
        return last(program, point, gain, floor)

    last = Program.improve
    monkeypatch.setattr(filling, "furthest", too_far)
    monkeypatch.setattr(Program, "improve", improve)
    answer = resolve("water_filling+packing")(problem)
    assert answer.optimal
    assert rates(problem, answer.time_share) == pytest.approx([0.8, 0.8], rel=1e-6)
