"""`max_min_fairness`: examples that can be checked in the head."""

import numpy as np
import pytest

from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand, together


def shares(problem: Problem, spec: str = "las") -> np.ndarray:
    """Time shares as a table of jobs by types."""
    return resolve(spec)(problem).time_share.reshape(len(problem.jobs), -1)


def test_weight_five_gets_five_times_the_share() -> None:
    """Two equal jobs on one GPU, weights 5 and 1: five sixths and one sixth of the time."""
    problem = Problem.from_rates([[3.0], [3.0]], 1, [1], weight=[5.0, 1.0])
    assert shares(problem).ravel() == pytest.approx([5 / 6, 1 / 6], rel=1e-6)


def test_the_job_that_gains_most_gets_the_fast_type() -> None:
    """Job a is four times as fast on the second type, b equally fast on both: a gets the second, b the first."""
    problem = Problem.from_rates([[1.0, 4.0], [1.0, 1.0]], 1, [1, 1])
    answer = resolve("las")(problem)
    assert answer.time_share == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-6)
    # The rates over the proportional rates are 4 / 2.5 for a and 1 / 1 for b; the value is the lower one.
    assert answer.value == pytest.approx(1.0, rel=1e-6)


def test_a_wide_job_holds_more_gpus_for_less_time() -> None:
    """Fairness counts GPUs, not time: on four GPUs, a job of width 3 runs 2/3 of the time, one of width 2 all of it."""
    problem = Problem.from_rates([[3.0], [2.0]], [3, 2], [4])
    held = shares(problem).ravel() * [3, 2]
    assert held == pytest.approx([2.0, 2.0], rel=1e-6)


def test_time_the_slowest_cannot_use_goes_to_others() -> None:
    """Job a can use the first type only and has all of it; b gets the rest, far above the minimum."""
    problem = Problem.from_rates([[1.0, 0.0], [1.0, 1.0]], 1, [1, 2])
    answer = resolve("las")(problem)
    assert answer.time_share.reshape(2, 2).sum(axis=1) == pytest.approx([1.0, 1.0], rel=1e-6)


def test_leftover_time_goes_by_speed_not_by_weight() -> None:
    """Time beyond the minimum goes to the job that gains most by it, whatever its weight.

    The minimum is λ = 2/10: a reaches it with all of the first GPU; b and c need 0.6 and 0.1 of the second. The other
    0.3 go to c: the proportional rates are 1/2, 1 and 1/2, so a share is worth 1 to b and 2 to c.
    """
    problem = Problem.from_rates([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], 1, [1, 1], weight=[10.0, 3.0, 1.0])
    assert shares(problem) == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.6], [0.0, 0.4]]), abs=1e-6)


def test_a_pair_that_loses_nothing_runs_all_the_time() -> None:
    """Two jobs that do not slow each other down share one GPU, and both run all the time."""
    problem = by_hand(
        {"gpu": 1.0}, alone("a", "gpu", 2.0), alone("b", "gpu", 4.0), together(("a", "b"), "gpu", (2.0, 4.0))
    )
    assert resolve("las+packing")(problem).time_share == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)
    assert resolve("las")(problem).time_share == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)


def test_a_pair_that_loses_more_than_it_gains_is_not_used() -> None:
    """Two jobs that would run together at 0.4 and 0.5 of their rates alone do more by taking turns."""
    problem = by_hand(
        {"gpu": 1.0}, alone("a", "gpu", 1.0), alone("b", "gpu", 1.0), together(("a", "b"), "gpu", (0.4, 0.5))
    )
    assert resolve("las+packing")(problem).time_share[2] == 0.0


def test_blind_cannot_tell_types_apart() -> None:
    """A blind policy spreads a job over all types by their number of GPUs, however slow they are."""
    problem = Problem.from_rates([[1.0, 9.0], [9.0, 1.0]], 1, [1, 1])
    assert shares(problem, "las+blind") == pytest.approx(np.full((2, 2), 0.5), abs=1e-6)
    assert shares(problem) == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-6)
