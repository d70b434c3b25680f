"""`finish_time_fairness`: ratios that can be checked in the head."""

import numpy as np
import pytest

from policies.problem import Problem
from policies.registry import resolve


def test_two_equal_jobs_are_as_well_off_as_isolated() -> None:
    """Each job gets half of the GPU, as it would in an isolated half of the cluster, so ρ = 1."""
    answer = resolve("ftf")(Problem.from_rates([[2.0], [2.0]], 1, [1], steps_left=100.0))
    assert answer.value == pytest.approx(1.0, rel=1e-6)
    assert answer.time_share == pytest.approx([0.5, 0.5], rel=1e-6)


def test_sharing_by_speed_beats_isolation() -> None:
    """Each job gets the type on which it is three times as fast: rate 3, not (1 + 3) / 2 = 2, so ρ = 2/3."""
    answer = resolve("ftf")(Problem.from_rates([[1.0, 3.0], [3.0, 1.0]], 1, [1, 1], steps_left=100.0))
    assert answer.value == pytest.approx(2 / 3, rel=1e-6)


def test_a_job_that_has_waited_gets_more() -> None:
    """One GPU; the older job waited 100 s and needs the rate R / (ρ S - t); both end at the same ratio.

    S = R / I = 200 s for both; (100 + 100 / x) / 200 = 100 / (1 - x) / 200 gives x = (1 + √5) / 2 - 1.
    """
    problem = Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=100.0, waited_s=[100.0, 0.0])
    answer = resolve("ftf")(problem)
    x = (np.sqrt(5.0) - 1.0) / 2.0
    assert answer.time_share == pytest.approx([x, 1 - x], rel=1e-6)
    assert answer.value == pytest.approx(0.5 / (1 - x), rel=1e-6)


def test_time_done_at_the_isolated_rate_counts() -> None:
    """A_m = 100 s lengthens the isolated run of job 0, so it may take longer: 100 / x = 300 ρ and 100 / y = 200 ρ."""
    problem = Problem.from_rates([[1.0], [1.0]], 1, [1], steps_left=100.0, isolated_s=[100.0, 0.0])
    assert resolve("ftf")(problem).time_share == pytest.approx([0.4, 0.6], rel=1e-6)


def test_unknown_steps_are_the_limit_of_many() -> None:
    """A job with unknown steps counts like a very long one, for which age does not matter: I_m / E_m <= ρ."""
    facts = {"waited_s": [500.0, 0.0, 20.0], "isolated_s": [1.0, 50.0, 0.0]}
    rate = [[1.0, 3.0], [2.0, 1.0], [2.0, 2.0]]
    unknown = resolve("ftf")(Problem.from_rates(rate, 1, [1, 1], steps_left=np.inf, **facts))
    long = resolve("ftf")(Problem.from_rates(rate, 1, [1, 1], steps_left=1e12, **facts))
    assert unknown.value == pytest.approx(long.value, rel=1e-6)
    assert unknown.time_share == pytest.approx(long.time_share, abs=1e-5)


def test_a_hopeless_job_does_not_drag_others_down() -> None:
    """Job 0 waited a day for a minute of work. It gets its GPU; the others share the other GPU as without job 0."""
    rate = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    problem = Problem.from_rates(
        rate,
        1,
        [1, 1],
        ids=["late", "x", "y"],
        steps_left=[60.0, 100.0, 100.0],
        waited_s=[86_400.0, 0.0, 0.0],
    )
    answer = resolve("ftf")(problem)
    assert answer.time_share.reshape(3, 2) == pytest.approx(np.array([[1, 0], [0, 0.5], [0, 0.5]]), abs=1e-6)
    assert "'late'" in answer.notes[0]
    assert "'x'" not in answer.notes[0]
    # I = 1/3: the reported worst ratio is that of the late job.
    assert answer.value == pytest.approx((86_400 + 60) / 180, rel=1e-6)


def test_weights_are_not_used() -> None:
    """A weight changes nothing: fairness of finish times considers only time."""
    rate, facts = [[1.0, 3.0], [3.0, 1.0]], {"steps_left": [50.0, 100.0]}
    plain = resolve("ftf")(Problem.from_rates(rate, 1, [1, 1], **facts))
    weighted = resolve("ftf")(Problem.from_rates(rate, 1, [1, 1], weight=[9.0, 1.0], **facts))
    assert weighted.value == pytest.approx(plain.value, rel=1e-9)
    assert weighted.time_share == pytest.approx(plain.time_share, abs=1e-9)
