"""`makespan`, `shortest_job_first` and `max_throughput`: three objectives over rates, checked by hand."""

import numpy as np
import pytest

from policies.errors import MissingFacts
from policies.problem import Problem
from policies.registry import resolve


def test_makespan_ends_all_at_once() -> None:
    """100 and 300 steps at one step per second on one GPU: 400 s, a quarter and three quarters of the time."""
    answer = resolve("makespan")(Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=[100.0, 300.0]))
    assert answer.value == pytest.approx(400.0, rel=1e-6)
    assert answer.time_share == pytest.approx([0.25, 0.75], rel=1e-6)


def test_makespan_of_a_long_job_is_its_own() -> None:
    """A job of 1,000 s decides the makespan; the others still run all the time on the GPUs it cannot use."""
    answer = resolve("makespan")(Problem.from_rates([[1.0]] * 3, 1, [3], steps_left=[1000.0, 10.0, 10.0]))
    assert answer.value == pytest.approx(1000.0, rel=1e-6)
    assert answer.time_share == pytest.approx([1.0, 1.0, 1.0], rel=1e-6)


def test_makespan_is_not_bisected() -> None:
    """The value is exact to the seventh digit: two jobs at 3/2 steps per second take 200 s."""
    answer = resolve("min_total_duration")(Problem.from_rates([[2.0, 1.0]] * 2, 1, [1, 1], steps_left=300.0))
    assert answer.value == pytest.approx(200.0, rel=1e-7)


def test_the_shortest_job_runs_first() -> None:
    """On one GPU a job of 10 steps runs before one of 1,000."""
    problem = Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=[1000.0, 10.0])
    assert resolve("sjf")(problem).time_share == pytest.approx([0.0, 1.0], abs=1e-6)


def test_weight_can_make_a_job_short() -> None:
    """A job of 200 times the weight runs first, although it is 100 times as long."""
    problem = Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=[1000.0, 10.0], weight=[200.0, 1.0])
    answer = resolve("sjf")(problem)
    assert answer.time_share == pytest.approx([1.0, 0.0], abs=1e-6)
    assert answer.value == pytest.approx(0.2, rel=1e-6)  # 200 / 1000


@pytest.mark.parametrize("spec", ["makespan", "sjf", "allox"])
def test_steps_must_be_known(spec: str) -> None:
    """Of seven jobs without steps the error names five, and counts the others."""
    steps = [10.0, *[np.inf] * 7]
    problem = Problem.from_rates(np.ones((8, 1)), 1, [1], ids=list("abcdefgh"), steps_left=steps)
    with pytest.raises(MissingFacts, match=r"'b', 'c', 'd', 'e', 'f' .*2") as caught:
        resolve(spec)(problem)
    assert "'a'" not in str(caught.value)


def test_throughput_counts_in_units_of_the_best() -> None:
    """A job of 1 step/s counts as much as one of 1,000: each gets the type on which the other loses more."""
    problem = Problem.from_rates([[1.0, 0.1], [1000.0, 900.0]], 1, [1, 1])
    answer = resolve("max_throughput")(problem)
    assert answer.time_share == pytest.approx([1.0, 0.0, 0.0, 1.0], abs=1e-6)
    assert answer.value == pytest.approx(1.9, rel=1e-6)


def test_raw_throughput_starves_slow_jobs() -> None:
    """In the plain sum 1,000 steps/s on the first type and 0.1 on the second are worth more than 900 and 1."""
    problem = Problem.from_rates([[1.0, 0.1], [1000.0, 900.0]], 1, [1, 1])
    answer = resolve("max_throughput(raw=true)")(problem)
    assert answer.time_share == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-6)
    assert answer.value == pytest.approx(1000.1, rel=1e-6)


def test_wide_jobs_do_not_starve() -> None:
    """A job of four GPUs counts four times: on four GPUs it is worth as much as four jobs of one."""
    answer = resolve("max_throughput")(Problem.from_rates([[2.0]], 4, [4]))
    assert answer.value == pytest.approx(4.0, rel=1e-6)


def test_no_gpu_idles_beside_a_waiting_job() -> None:
    """With three jobs on two GPUs, the sum of rates is two, whichever jobs run."""
    assert resolve("max_throughput")(Problem.from_rates([[1.0]] * 3, 1, [2])).value == pytest.approx(
        2.0, rel=1e-6
    )
