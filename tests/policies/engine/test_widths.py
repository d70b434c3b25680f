"""Elastic jobs: the same GPU time at widths as even as possible. Shares are the job's time by type and width."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.engine.widths import even_widths
from policies.problem import Floats, Problem
from policies.registry import resolve
from tests.support.problems import Way, alone, by_hand, problems, together


def widths(job: str, worker_type: str, *rates: float) -> list[Way]:
    """A job with these rates on one, two, three … GPUs of a type."""
    return [alone(job, worker_type, rate, gpus) for gpus, rate in enumerate(rates, 1)]


def even(problem: Problem, *shares: float) -> list[float]:
    """Even out these shares, with all columns usable."""
    return even_widths(problem, np.arange(len(problem.columns)), np.array(shares)).round(9).tolist()


LINEAR = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 2.0, 3.0, 4.0))


def test_a_bit_of_every_width_is_the_mean_width() -> None:
    """A fifth of the time at each of 1, 2, 3 and 4 GPUs becomes two GPUs for all of the time."""
    assert even(LINEAR, 0.2, 0.2, 0.2, 0.2) == [0.0, 1.0, 0.0, 0.0]


def test_a_mean_between_two_widths_is_both_of_them() -> None:
    """Two and a half GPUs on average become half of the time at two, half at three."""
    assert even(LINEAR, 0.25, 0.25, 0.25, 0.25) == [0.0, 0.5, 0.5, 0.0]


def test_no_job_is_narrower_than_its_narrowest_width() -> None:
    """Half a GPU becomes one GPU for half of the time, or two for a quarter if the job needs at least two."""
    assert even(LINEAR, 0.0, 0.0, 0.0, 0.125) == [0.5, 0.0, 0.0, 0.0]
    wide = by_hand({"v100": 4}, alone("e", "v100", 2.0, 2), alone("e", "v100", 4.0, 4))
    assert even(wide, 0.0, 0.125) == [0.25, 0.0]


def test_time_that_is_left_goes_to_both_types() -> None:
    """Idle time is divided between the types as the rest of the time is, here evenly."""
    ways = [*widths("e", "k80", 1.0, 2.0), *widths("e", "v100", 3.0, 6.0)]
    assert even(by_hand({"k80": 2, "v100": 2}, *ways), 0.0, 0.25, 0.0, 0.25) == [0.5, 0.0, 0.5, 0.0]


def test_a_row_of_many_has_the_time_of_all_of_them() -> None:
    """A row of two jobs with three GPUs between them has 1.5 GPUs a job on average."""
    two = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 2.0, 3.0), count=2)
    assert even(two, 0.0, 0.0, 1.0) == [1.0, 1.0, 0.0]


def test_a_job_that_is_more_efficient_when_wide_stays_wide() -> None:
    """Four GPUs do five times the work of one, so evening out would cost the job steps, and is not done."""
    problem = by_hand({"v100": 4}, alone("e", "v100", 1.0), alone("e", "v100", 5.0, 4))
    assert even(problem, 0.2, 0.2) == [0.2, 0.2]


def test_a_job_that_is_less_efficient_when_wide_gains() -> None:
    """Two GPUs for all of the time do more work than four GPUs for half of the time."""
    problem = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 1.9, 2.7, 3.4))
    assert even(problem, 0.0, 0.0, 0.0, 0.5) == [0.0, 1.0, 0.0, 0.0]


def test_only_widths_are_evened_out() -> None:
    """Labelled columns, pairs, unusable columns, and jobs of one width keep their shares."""
    problem = by_hand(
        {"v100": 8},
        *widths("e", "v100", 1.0, 2.0, 3.0),
        alone("e", "v100", 2.0, 2, "tp2"),
        alone("f", "v100", 2.0, 2),
        together(("f", "g"), "v100", (1.0, 1.0), 2),
        alone("g", "v100", 1.0),
    )
    shares = np.array([0.2, 0.0, 0.2, 0.2, 0.3, 0.5, 0.1])
    # All but e on two GPUs.
    usable = np.array([0, 2, 3, 4, 5, 6])
    # 0.8 GPUs in up to 0.8 of the time are one GPU.
    assert even_widths(problem, usable, shares) == pytest.approx([0.8, 0.0, 0.0, 0.2, 0.3, 0.5, 0.1])


def test_an_elastic_job_beside_another_is_as_wide_as_what_is_left() -> None:
    """Of four GPUs f needs two all of the time: e has the other two, and no width that would displace f."""
    ways = [*widths("e", "v100", 10.0, 20.0, 30.0, 40.0), alone("f", "v100", 20.0, 2)]
    problem = by_hand({"v100": 4}, *ways, steps_left=1e6)
    for policy in ("las", "water_filling", "hierarchical", "makespan"):
        assert resolve(policy)(problem).time_share == pytest.approx([0, 1, 0, 0, 1], abs=1e-6), policy


@given(
    problem=problems(variants=st.just(True), cpus=st.just(False)),
    seed=st.integers(0, 99),
    part=st.floats(0, 1),
)
@settings(max_examples=80)
def test_no_job_loses_and_no_type_is_used_more(problem: Problem, seed: int, part: float) -> None:
    """GPU time of each type stays, no rate falls, no job has more than all its time; evening twice changes nothing."""
    columns, rng = problem.columns, np.random.default_rng(seed)
    usable = np.flatnonzero(columns.first_rate > 0)
    shares = np.zeros(len(columns))
    shares[usable] = rng.random(len(usable))
    most = float((problem.membership @ shares / problem.jobs.count).max(initial=1e-9))
    shares *= part / most
    out = even_widths(problem, usable, shares)
    assert problem.occupancy @ out == pytest.approx(problem.occupancy @ shares, abs=1e-9)
    assert (problem.rates @ out >= (problem.rates @ shares) * (1 - 1e-8) - 1e-12).all()
    assert (problem.membership @ out <= problem.jobs.count * (1 + 1e-9)).all()
    assert (out >= 0).all()
    assert out[columns.is_pair].tolist() == shares[columns.is_pair].tolist()
    again: Floats = even_widths(problem, usable, out)
    assert problem.rates @ again == pytest.approx(problem.rates @ out, rel=1e-8)
