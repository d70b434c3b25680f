"""Twins are types on which jobs are equally fast: jobs change between twins as little as possible.

Shares are tables of jobs by types.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.engine.twins import keep_types
from policies.problem import Problem
from tests.support.problems import alone, by_hand, together

NOWHERE, A100, SPOT = -1, 0, 1


def table(
    shares: list[list[float]],
    at: list[int],
    *,
    capacity: tuple[float, ...] = (2, 2),
    by_price: bool = False,
    **facts: object,
) -> list[list[float]]:
    """Settle these shares of jobs that are equally fast on every type."""
    problem = Problem.from_rates(np.ones((len(at), len(capacity))), 1, capacity, **facts)  # type: ignore[arg-type]
    out = keep_types(problem, np.array(shares, float).ravel(), np.array(at), by_price=by_price)
    return [list(row) for row in out.reshape(len(at), -1).round(9).tolist()]


def test_a_job_stays_where_it_runs() -> None:
    """Alone in the cluster, a job with half its time on each of two types gets all its time on one type.

    For a running job it is the current type.
    """
    assert table([[0.5, 0.5]], [SPOT]) == [[0.0, 1.0]]
    assert table([[0.5, 0.5]], [A100]) == [[1.0, 0.0]]
    assert sum(table([[0.5, 0.5]], [NOWHERE])[0]) == 1.0


def test_four_jobs_on_four_gpus_stay_where_they_run() -> None:
    """Running jobs stay on their types, and new jobs take the rest."""
    halves = [[0.5, 0.5]] * 4
    assert table(halves, [SPOT, A100, A100, SPOT]) == [[0, 1], [1, 0], [1, 0], [0, 1]]
    assert table(halves, [SPOT, NOWHERE, A100, NOWHERE]) == [[0, 1], [1, 0], [1, 0], [0, 1]]


def test_no_type_exceeds_its_capacity() -> None:
    """Three jobs run on a type of two GPUs (one of them on a draining node): one of them has to move."""
    assert table([[0.5, 0.5]] * 4, [A100, A100, A100, NOWHERE]) == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_one_job_is_split_where_it_must_be() -> None:
    """Two jobs run all the time on capacities of 1.5 and 0.5: one of them has to use both types."""
    assert table([[0.75, 0.25], [0.75, 0.25]], [A100, SPOT], capacity=(1.5, 0.5)) == [[1, 0], [0.5, 0.5]]


def test_part_of_the_time_is_on_one_type_too() -> None:
    """Six jobs on four GPUs have two thirds of the time each, three jobs on each type."""
    assert table([[1 / 3, 1 / 3]] * 6, [0, 1, 0, 1, 0, 1]) == [[round(2 / 3, 9), 0], [0, round(2 / 3, 9)]] * 3


def test_if_prices_count_a_job_gets_its_time_on_the_cheaper_type() -> None:
    """If prices count, a job with half its time on each type gets all of it on the cheaper type, wherever it runs."""
    price = {"price_per_gpu_hour": np.array([2.0, 1.0])}
    assert table([[0.5, 0.5]], [A100], by_price=True, **price) == [[0.0, 1.0]]
    assert table([[0.5, 0.5]], [A100], **price) == [[1.0, 0.0]]
    cheap = {"price_per_gpu_hour": np.array([1.0, 2.0])}
    assert table([[0.5, 0.5]], [SPOT], by_price=True, **cheap) == [[1.0, 0.0]]


def test_shares_between_unequal_types_stay() -> None:
    """Shares of jobs with other speeds, of widths that differ by type, and of pairs do not change."""
    problem = by_hand(
        {"a100": 4, "spot": 4},
        alone("a", "a100", 2.0),
        alone("a", "spot", 1.0),
        alone("b", "a100", 2.0, 2),
        alone("b", "spot", 2.0),
        together(("a", "b"), "a100", (1.0, 1.0)),
        together(("a", "b"), "spot", (1.0, 1.0)),
    )
    shares = np.full(6, 0.25)
    assert keep_types(problem, shares, np.array([1, 1])).tolist() == shares.tolist()


@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 12), types=st.integers(2, 4), by_price=st.booleans())
@settings(max_examples=150)
def test_no_job_loses_and_capacity_is_kept(seed: int, jobs: int, types: int, by_price: bool) -> None:
    """Each job keeps its rate and time, no type exceeds its capacity, and few jobs are split.

    If prices count, the cost does not rise.
    """
    rng = np.random.default_rng(seed)
    rates = rng.choice([1.0, 1.0, 2.0, 0.0], (jobs, types))
    rates[(rates > 0).sum(axis=1) == 0, 0] = 1.0
    gpus, price = rng.integers(1, 4, jobs), rng.choice([1.0, 2.0], types)
    shares = rng.random((jobs, types)) * (rates > 0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    used = (gpus[:, None] * shares).sum(axis=0)
    capacity = np.ceil(used + rng.integers(0, 2, types))
    problem = Problem.from_rates(rates, gpus, capacity, price_per_gpu_hour=price)
    columns = problem.columns
    before = shares[columns.first, columns.worker_type]
    at = rng.integers(-1, types, jobs)
    out = keep_types(problem, before, at, by_price=by_price)
    assert (out >= 0).all()
    assert problem.rates @ out == pytest.approx(problem.rates @ before, rel=1e-5, abs=1e-9)
    assert problem.membership @ out == pytest.approx(problem.membership @ before, abs=1e-8)
    assert (problem.occupancy @ out <= capacity + 1e-7).all()
    if by_price:
        assert price @ (problem.occupancy @ out) <= price @ (problem.occupancy @ before) + 1e-7
    assert np.count_nonzero(out > 1e-9) <= np.count_nonzero(before > 1e-9) + types * types
