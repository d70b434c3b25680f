"""Elastic jobs: the same GPU time, as evenly as can be. Shares are read as {(type, width): time} of the job."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.engine.widths import evened
from policies.problem import Floats, Problem
from policies.registry import resolve
from tests.support.problems import Way, alone, by_hand, problems, together


def widths(job: str, worker_type: str, *rates: float) -> list[Way]:
    """A job that is so fast on one, two, three … GPUs of a type."""
    return [alone(job, worker_type, rate, gpus) for gpus, rate in enumerate(rates, 1)]


def even(problem: Problem, *shares: float) -> list[float]:
    """What becomes of these shares, all columns usable."""
    return evened(problem, np.arange(len(problem.columns)), np.array(shares)).round(9).tolist()


LINEAR = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 2.0, 3.0, 4.0))


def test_a_bit_of_every_width_is_the_mean_width() -> None:
    """A fifth of the time each at 1, 2, 3 and 4 GPUs is two GPUs all of the time."""
    assert even(LINEAR, 0.2, 0.2, 0.2, 0.2) == [0.0, 1.0, 0.0, 0.0]


def test_a_mean_between_two_widths_is_both_of_them() -> None:
    """Two and a half GPUs: half of the time at two, half at three."""
    assert even(LINEAR, 0.25, 0.25, 0.25, 0.25) == [0.0, 0.5, 0.5, 0.0]


def test_nobody_is_narrower_than_the_narrowest() -> None:
    """Half a GPU is one GPU for half of the time; a job that is never narrower than two has them a quarter of it."""
    assert even(LINEAR, 0.0, 0.0, 0.0, 0.125) == [0.5, 0.0, 0.0, 0.0]
    wide = by_hand({"v100": 4}, alone("e", "v100", 2.0, 2), alone("e", "v100", 4.0, 4))
    assert even(wide, 0.0, 0.125) == [0.25, 0.0]


def test_time_that_is_left_goes_to_both_types() -> None:
    """Half of the time is idle: it is divided as the rest of the time is, here evenly."""
    ways = [*widths("e", "k80", 1.0, 2.0), *widths("e", "v100", 3.0, 6.0)]
    assert even(by_hand({"k80": 2, "v100": 2}, *ways), 0.0, 0.25, 0.0, 0.25) == [0.5, 0.0, 0.5, 0.0]


def test_a_row_of_many_has_the_time_of_all_of_them() -> None:
    """Two alike, of three GPUs between them: they are wide one and a half on average."""
    two = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 2.0, 3.0), count=2)
    assert even(two, 0.0, 0.0, 1.0) == [1.0, 1.0, 0.0]


def test_who_is_faster_when_wide_stays_wide() -> None:
    """Four GPUs do five times the work of one: nothing is taken from a job for the sake of evenness."""
    problem = by_hand({"v100": 4}, alone("e", "v100", 1.0), alone("e", "v100", 5.0, 4))
    assert even(problem, 0.2, 0.2) == [0.2, 0.2]


def test_what_loses_per_gpu_when_wide_gains() -> None:
    """Two GPUs all of the time do more than four of them for half of it."""
    problem = by_hand({"v100": 4}, *widths("e", "v100", 1.0, 1.9, 2.7, 3.4))
    assert even(problem, 0.0, 0.0, 0.0, 0.5) == [0.0, 1.0, 0.0, 0.0]


def test_only_widths_are_evened_out() -> None:
    """Not labels, not pairs, not columns that may not be used, nor who has one width only."""
    problem = by_hand(
        {"v100": 8},
        *widths("e", "v100", 1.0, 2.0, 3.0),
        alone("e", "v100", 2.0, 2, "tp2"),
        alone("f", "v100", 2.0, 2),
        together(("f", "g"), "v100", (1.0, 1.0), 2),
        alone("g", "v100", 1.0),
    )
    shares = np.array([0.2, 0.0, 0.2, 0.2, 0.3, 0.5, 0.1])
    usable = np.array([0, 2, 3, 4, 5, 6])  # not the two GPUs of e
    # 0.8 GPUs in what may be 0.8 of the time: one GPU
    assert evened(problem, usable, shares) == pytest.approx([0.8, 0.0, 0.0, 0.2, 0.3, 0.5, 0.1])


def test_an_elastic_job_beside_another_is_as_wide_as_what_is_left() -> None:
    """Of four GPUs f needs two all of the time: e has the other two, not a mix of widths that would push f aside."""
    ways = [*widths("e", "v100", 10.0, 20.0, 30.0, 40.0), alone("f", "v100", 20.0, 2)]
    problem = by_hand({"v100": 4}, *ways, steps_left=1e6)
    for policy in ("las", "water_filling", "hierarchical", "makespan"):
        assert resolve(policy)(problem).time_share == pytest.approx([0, 1, 0, 0, 1], abs=1e-6), policy


@given(problem=problems(variants=st.just(True)), seed=st.integers(0, 99), part=st.floats(0, 1))
@settings(max_examples=80)
def test_nobody_loses_and_nothing_more_is_used(problem: Problem, seed: int, part: float) -> None:
    """GPU time of every type as before, no rate lower, no time beyond what there is; once evened, twice evened."""
    columns, rng = problem.columns, np.random.default_rng(seed)
    usable = np.flatnonzero(columns.first_rate > 0)
    shares = np.zeros(len(columns))
    shares[usable] = rng.random(len(usable))
    most = float((problem.membership @ shares / problem.jobs.count).max(initial=1e-9))
    shares *= part / most
    out = evened(problem, usable, shares)
    assert problem.occupancy @ out == pytest.approx(problem.occupancy @ shares, abs=1e-9)
    assert (problem.rates @ out >= (problem.rates @ shares) * (1 - 1e-8) - 1e-12).all()
    assert (problem.membership @ out <= problem.jobs.count * (1 + 1e-9)).all()
    assert (out >= 0).all()
    assert out[columns.is_pair].tolist() == shares[columns.is_pair].tolist()
    again: Floats = evened(problem, usable, out)
    assert problem.rates @ again == pytest.approx(problem.rates @ out, rel=1e-8)
