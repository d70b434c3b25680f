"""`fifo`: jobs run in the order of arrival, and none overtakes another."""

import numpy as np
import pytest
from hypothesis import given, settings

from policies.problem import Problem
from policies.registry import resolve
from tests.support import formulations as f
from tests.support.problems import alone, by_hand, problems, together
from tests.support.wording import Wording


def running(problem: Problem, spec: str = "fifo") -> set[str]:
    """Return the jobs that run, after checking that they run all the time."""
    share = resolve(spec)(problem).time_share
    assert set(share.tolist()) <= {0.0, 1.0}
    columns = problem.columns
    rows = set(columns.first[share > 0].tolist()) | set(columns.second[share > 0].tolist()) - {-1}
    return {problem.jobs.ids[row] for row in rows}


def test_by_arrival() -> None:
    """Two GPUs for three jobs go to the two that have waited longest."""
    problem = Problem.from_rates([[1.0]] * 3, 1, [2], ids=list("abc"), waited_s=[5.0, 20.0, 10.0])
    assert running(problem) == {"b", "c"}
    assert resolve("fifo")(problem).value == 2.0


def test_arrival_together_is_decided_by_name() -> None:
    """Of jobs of equal age the one with the lower id is first."""
    assert running(Problem.from_rates([[1.0]] * 2, 1, [1], ids=["b", "a"], waited_s=7.0)) == {"a"}


def test_no_job_overtakes() -> None:
    """The second job in line needs three GPUs, and two are left: the third job, which needs one, has to wait, too."""
    problem = Problem.from_rates([[1.0]] * 3, [2, 3, 1], [4], ids=list("abc"), waited_s=[30.0, 20.0, 10.0])
    assert running(problem) == {"a"}
    assert not resolve("fifo")(problem).backfill.any()


def test_each_takes_the_fastest_type_with_room() -> None:
    """The oldest job takes the fast type; the next job takes the slow one, because only that has room."""
    problem = Problem.from_rates([[1.0, 5.0], [1.0, 9.0]], 1, [1, 1], waited_s=[2.0, 1.0])
    assert resolve("fifo")(problem).time_share.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_too_wide_for_every_type_is_passed_over(wording: Wording) -> None:
    """A job of four GPUs on types of two can never start: it is named, and does not block the queue."""
    problem = Problem.from_rates(
        [[1.0, 1.0], [1.0, 1.0]], [4, 1], [2, 2], ids=["huge", "b"], waited_s=[9.0, 1.0]
    )
    assert running(problem) == {"b"}
    (note,) = resolve("fifo")(problem).notes
    assert "'huge'" in note
    wording(note)


def test_packing_lets_the_next_join() -> None:
    """On one GPU, with packing, the second job joins the first; the third finds no job that is alone, and waits."""
    problem = by_hand(
        {"gpu": 1.0},
        *(alone(job, "gpu", 1.0) for job in "abc"),
        *(together(pair, "gpu", (0.8, 0.8)) for pair in (("a", "b"), ("b", "c"), ("a", "c"))),
        waited_s=[3.0, 2.0, 1.0],
    )
    assert running(problem) == {"a"}
    assert running(problem, "fifo+packing") == {"a", "b"}


def test_blind_spreads_over_types_without_piling_up() -> None:
    """To a blind FIFO all types are equally fast: 12 jobs get 12 GPUs, six of each type, however slow it is."""
    problem = Problem.from_rates([[9.0, 1.0]] * 12, 1, [6, 6], waited_s=np.arange(12.0))
    held = resolve("fifo+blind")(problem).time_share.reshape(12, 2).sum(axis=0)
    assert held.tolist() == [6.0, 6.0]


@settings(max_examples=30)
@given(problem=problems())
def test_running_jobs_are_the_front_of_the_queue(problem: Problem) -> None:
    """Of jobs that could ever start, the running ones arrived before the others, and the next has no room."""
    solvable = f.visible(problem)
    if not len(solvable.jobs):
        return
    share = resolve("fifo")(solvable).time_share
    runs = np.isin(np.arange(len(solvable.jobs)), solvable.columns.first[share > 0])
    table, jobs = f.rate_table(solvable), solvable.jobs
    fits = ((table > 0) & (jobs.gpus[:, None] <= solvable.capacity)).any(axis=1)
    line = [m for m in sorted(range(len(jobs)), key=lambda m: (-jobs.waited_s[m], jobs.ids[m])) if fits[m]]
    length = int(runs.sum())
    assert runs[line[:length]].all()
    if length < len(line):
        held = np.bincount(
            solvable.columns.worker_type, share * solvable.columns.gpus, len(solvable.capacity)
        )
        last = line[length]
        assert not ((table[last] > 0) & (jobs.gpus[last] <= solvable.capacity - held)).any()


@pytest.mark.parametrize("fast", [0, 1])
def test_with_room_every_job_has_its_fastest_type(fast: int) -> None:
    """With room for all, every job has its best type."""
    rates = np.ones((4, 2))
    rates[:, fast] = 3.0
    share = resolve("fifo")(Problem.from_rates(rates, 1, [4, 4])).time_share.reshape(4, 2)
    assert share[:, fast].tolist() == [1.0] * 4
