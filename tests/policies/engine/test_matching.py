"""The exact matching of jobs to (GPU, position from last), against enumeration and against a general solver."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from policies.engine.matching import Schedule, shortest_schedule
from policies.errors import ProblemError
from policies.problem import Floats, Ints
from tests.support.wording import Wording


def times(seed: int, jobs: int, types: int, blocked: bool = False, ties: bool = False) -> Floats:
    """How long each job takes on each type; `blocked`: some times are infinite; `ties`: whole numbers."""
    rng = np.random.default_rng(seed)
    time_s = np.exp(rng.uniform(0.0, 8.0, (jobs, types)))
    if ties:
        time_s = np.round(rng.uniform(1.0, 4.0, (jobs, types)))
    if blocked:
        never = rng.random((jobs, types)) < 0.4
        never[np.arange(jobs), rng.integers(0, types, jobs)] = False
        time_s[never] = np.inf
    return time_s


def cost_by_enumeration(time_s: Floats, gpus: Ints) -> float:
    """The least cost of all assignments of jobs to GPUs, with the shortest job first on each GPU."""
    kind_of_gpu = np.repeat(np.arange(len(gpus)), gpus)
    best = np.inf
    for choice in product(range(len(kind_of_gpu)), repeat=len(time_s)):
        cost = 0.0
        for gpu in set(choice):
            own = np.sort([time_s[job, kind_of_gpu[gpu]] for job, at in enumerate(choice) if at == gpu])
            cost += float(own @ np.arange(len(own), 0, -1))
        best = min(best, cost)
    return best


def cost_by_assignment(time_s: Floats, gpus: Ints) -> float:
    """The least cost, from one assignment of jobs to all (GPU, position) places."""
    jobs = len(time_s)
    kind = np.repeat(np.arange(len(gpus)), gpus)
    cost = (time_s[:, kind, None] * np.arange(1, jobs + 1)).reshape(jobs, -1)
    row, place = linear_sum_assignment(np.where(np.isfinite(cost), cost, 1e12))
    return float(cost[row, place].sum())


def assert_possible(schedule: Schedule, time_s: Floats, gpus: Ints) -> None:
    """Every job has a finite time, no position holds more jobs than there are GPUs, and the cost is right."""
    jobs = len(time_s)
    job_time_s = time_s[np.arange(jobs), schedule.kind]
    assert np.isfinite(job_time_s).all()
    for kind in range(len(gpus)):
        filled = np.bincount(schedule.position[schedule.kind == kind], minlength=2)
        assert filled[0] == 0
        assert filled.max() <= gpus[kind]
        # No position is empty if a later one is filled.
        assert (np.diff(filled[1:]) <= 0).all()
    assert schedule.cost == pytest.approx(float(job_time_s @ schedule.position))


def test_one_gpu_takes_the_shortest_first() -> None:
    """Of jobs of 5, 1 and 3 s on one GPU, that of 1 s runs first (position 3 from last); completion times sum to 14."""
    schedule = shortest_schedule(np.array([[5.0], [1.0], [3.0]]), np.array([1]))
    assert schedule.position.tolist() == [1, 3, 2]
    assert schedule.cost == 1 + 4 + 9


def test_a_slower_gpu_beats_a_queue() -> None:
    """Two jobs, one fast and one slow GPU: the job that loses less takes the slow one."""
    schedule = shortest_schedule(np.array([[4.0, 9.0], [3.0, 5.0]]), np.array([1, 1]))
    assert schedule.kind.tolist() == [0, 1]
    assert schedule.cost == 9.0


@given(
    seed=st.integers(0, 10_000),
    jobs=st.integers(0, 5),
    gpus=st.sampled_from([(1,), (2,), (1, 1), (2, 1), (1, 0), (1, 1, 1)]),
    blocked=st.booleans(),
    ties=st.booleans(),
)
@settings(max_examples=60)
def test_small_schedules_are_the_best_of_all(
    seed: int, jobs: int, gpus: tuple[int, ...], blocked: bool, ties: bool
) -> None:
    """No other assignment has a smaller sum of completion times."""
    count = np.array(gpus)
    time_s = times(seed, jobs, len(gpus), blocked and 0 not in gpus, ties)
    schedule = shortest_schedule(time_s, count)
    assert_possible(schedule, time_s, count)
    assert schedule.cost == pytest.approx(cost_by_enumeration(time_s, count))


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(("jobs", "gpus"), [(60, (3, 2, 4)), (60, (30, 20, 40)), (80, (1, 1)), (25, (7,))])
def test_larger_schedules_agree_with_a_general_solver(
    jobs: int, gpus: tuple[int, ...], blocked: bool
) -> None:
    """With long queues, short queues, or more GPUs than jobs, the cost is that of a general assignment."""
    count, time_s = np.array(gpus), times(jobs, jobs, len(gpus), blocked and len(gpus) > 1)
    schedule = shortest_schedule(time_s, count)
    assert_possible(schedule, time_s, count)
    assert schedule.cost == pytest.approx(cost_by_assignment(time_s, count), rel=1e-9)


def test_times_of_very_different_size() -> None:
    """If some jobs take milliseconds and others days, the short times are not lost in rounding."""
    time_s = np.array([[1e-3, 2e-3], [1e6, 3e6], [2e-3, 1e-3], [2e6, 1e6], [5.0, 4.0]])
    count = np.array([1, 1])
    assert shortest_schedule(time_s, count).cost == pytest.approx(cost_by_enumeration(time_s, count))


def test_a_job_that_fits_nowhere(wording: Wording) -> None:
    """A job that can run on no type with a GPU is refused."""
    with pytest.raises(ProblemError) as refused:
        shortest_schedule(np.array([[1.0, np.inf], [np.inf, 2.0]]), np.array([1, 0]))
    wording(refused.value)
