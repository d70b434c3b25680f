"""`allox`: schedules short enough to work out by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.errors import ProblemError
from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand
from tests.support.references import allox
from tests.support.wording import Wording


def test_the_short_job_runs_before_the_long_one() -> None:
    """On one GPU, jobs of 1 s and 10 s in this order complete after 1 + 11 s, in the other order after 10 + 11 s."""
    answer = resolve("allox")(Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=[10.0, 1.0]))
    assert answer.time_share.tolist() == [0.0, 1.0]
    assert answer.value == pytest.approx(12.0)


def test_time_already_waited_does_not_change_the_schedule() -> None:
    """The time that a job has already waited (t_m) adds the same to its completion time in every schedule."""
    problem = Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=[10.0, 1.0], waited_s=[500.0, 3.0])
    answer = resolve("allox")(problem)
    assert answer.time_share.tolist() == [0.0, 1.0]
    assert answer.value == pytest.approx(515.0)


def test_waiting_for_the_fast_gpu_can_pay() -> None:
    """A GPU ten times as fast: both jobs queue for it (1 + 2 s) rather than have one take 10 s elsewhere."""
    problem = Problem.from_rates([[1.0, 10.0], [1.0, 10.0]], 1, [1, 1], steps_left=10.0)
    answer = resolve("allox")(problem)
    assert answer.value == pytest.approx(3.0)
    assert answer.time_share.reshape(2, 2).sum(axis=0).tolist() == [0.0, 1.0]


def test_wide_jobs_are_refused_by_name(wording: Wording) -> None:
    """Jobs of several GPUs are refused by name, because the policy assigns each job to one GPU."""
    problem = Problem.from_rates([[1.0]] * 3, [1, 2, 4], [4], ids=list("abc"), steps_left=1.0)
    with pytest.raises(ProblemError, match="'b', 'c'") as refused:
        resolve("allox")(problem)
    assert "'a'" not in str(refused.value)
    wording(refused.value)


@pytest.mark.parametrize("alpha", ["-0.1", "1.1", "'half'", "false"])
def test_alpha_is_a_share(alpha: str, wording: Wording) -> None:
    """If alpha is not a number from 0 to 1, the error names the parameter."""
    with pytest.raises(ProblemError, match=r"allox: alpha is ") as refused:
        resolve(f"allox(alpha={alpha})")(Problem.from_rates([[1.0]], 1, [1], steps_left=1.0))
    wording(refused.value)


def test_alpha_leaves_out_the_newest_jobs() -> None:
    """With alpha 0.5 only the older half of six jobs is considered: of these, the shortest runs on the one GPU."""
    problem = Problem.from_rates(
        [[1.0]] * 6,
        1,
        [1],
        ids=list("abcdef"),
        steps_left=[30.0, 20.0, 40.0, 1.0, 2.0, 3.0],
        waited_s=[90.0, 80.0, 70.0, 3.0, 2.0, 1.0],
    )
    share = resolve("allox(alpha=0.5)")(problem).time_share
    assert problem.jobs.ids[int(share.argmax())] == "b"
    assert share.sum() == 1.0
    assert resolve("allox")(problem).time_share.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_alpha_keeps_as_many_jobs_as_gpus() -> None:
    """alpha = 0 still fills the GPUs, with the oldest jobs."""
    problem = Problem.from_rates([[1.0]] * 4, 1, [2], steps_left=5.0, waited_s=[1.0, 2.0, 3.0, 4.0])
    assert resolve("allox(alpha=0)")(problem).time_share.tolist() == [0.0, 0.0, 1.0, 1.0]


@settings(max_examples=25)
@given(data=st.data())
def test_no_schedule_is_better(data: st.DataObject) -> None:
    """No other way to put up to five jobs on two types of GPU, each queue shortest first, is better."""
    n = data.draw(st.integers(1, 5))
    rates = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2 * n, max_size=2 * n))
    steps = data.draw(st.lists(st.sampled_from([1.0, 2.0, 5.0, 7.0]), min_size=n, max_size=n))
    problem = Problem.from_rates(np.reshape(rates, (n, 2)), 1, [1, 1], steps_left=steps)
    time_s = problem.jobs.steps_left[:, None] / np.reshape(rates, (n, 2))

    def ends(choice: tuple[int, ...]) -> float:
        queues = [sorted(time_s[m, j] for m in range(n) if choice[m] == j) for j in (0, 1)]
        return sum(float(np.cumsum(queue).sum()) for queue in queues if queue)

    least = min(ends(choice) for choice in product((0, 1), repeat=n))
    assert resolve("allox")(problem).value == pytest.approx(least, rel=1e-9)
    assert allox(problem).value == pytest.approx(least, rel=1e-9)


def test_only_columns_of_one_gpu_count(wording: Wording) -> None:
    """A job that asks for one GPU, but has only a rate on four, gets no GPU; the next job gets it."""
    problem = by_hand(
        {"v100": 1.0}, alone("a", "v100", 9.0, gpus=4), alone("b", "v100", 1.0), steps_left=[1, 1]
    )
    problem = replace(problem, jobs=replace(problem.jobs, gpus=np.ones(2, dtype=np.int64)))
    answer = resolve("allox")(problem)
    assert answer.time_share.tolist() == [0.0, 1.0]
    (note,) = answer.notes
    assert note.endswith(": 'a'")
    wording(note)


def test_a_part_of_a_gpu_runs_nothing() -> None:
    """Half a GPU cannot hold a job that runs now."""
    answer = resolve("allox")(Problem.from_rates([[1.0, 9.0]], 1, [1, 0.5], steps_left=[1.0]))
    assert answer.time_share.tolist() == [1.0, 0.0]
    nowhere = resolve("allox")(Problem.from_rates([[1.0]], 1, [0.5], steps_left=[1.0]))
    assert nowhere.time_share.tolist() == [0.0]
    assert "not scheduled" in nowhere.notes[0]


def test_the_time_limit_is_kept() -> None:
    """Matching thousands of jobs to a few GPUs takes long; when the time is up, isolated shares are returned."""
    rng = np.random.default_rng(0)
    rate, steps = rng.uniform(0.5, 20, (5000, 2)), rng.uniform(1e3, 1e6, 5000)
    answer = resolve("allox", time_limit_s=0.05)(Problem.from_rates(rate, 1, [3, 2], steps_left=steps))
    assert not answer.optimal
    assert answer.solve_s < 2.0
