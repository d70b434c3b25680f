"""The rates that fairness is measured against, by hand: two jobs on two V100s and four K80s."""

import numpy as np
import pytest
from hypothesis import given, settings

from policies.engine.grouping import group
from policies.problem import Problem
from policies.reference import (
    best_rates,
    isolated_rates,
    isolated_shares,
    proportional_rates,
    rate_table,
)
from tests.support.problems import alone, by_hand, problems

PLAIN = Problem.from_rates([[6.0, 1.5], [4.0, 0.0]], gpus=[1, 2], capacity=[2, 4])


def test_proportional_is_time_on_every_type_as_the_cluster_has_it() -> None:
    """P = Σ T c / C: a third of the cluster is V100, two thirds are K80."""
    assert proportional_rates(PLAIN) == pytest.approx([6.0 / 3 + 1.5 * 2 / 3, 4.0 / 3])


def test_isolated_is_a_slice_of_the_cluster() -> None:
    """y = (c / n) / g: each of two jobs has half the cluster, for half the time if it is twice as wide.

    No job has more than all of the time.
    """
    assert isolated_shares(PLAIN) == pytest.approx(np.array([[1 / 3, 2 / 3], [0.5 / 1.5, 1.0 / 1.5]]))
    assert isolated_rates(PLAIN) == pytest.approx([6.0 / 3 + 1.5 * 2 / 3, 4.0 / 3])
    crowded = Problem.from_rates(np.full((12, 2), 3.0), gpus=2, capacity=[2, 4])
    assert isolated_shares(crowded)[0] == pytest.approx([2 / 12 / 2, 4 / 12 / 2])
    assert isolated_rates(crowded)[0] == pytest.approx(3.0 / 4)


def test_best_is_the_fastest_type_that_is_there() -> None:
    """A type without GPUs is the best of no job."""
    assert best_rates(PLAIN).tolist() == [6.0, 4.0]
    gone = Problem.from_rates([[6.0, 1.5], [4.0, 0.0]], capacity=[0, 4])
    assert best_rates(gone).tolist() == [1.5, 0.0]


def test_a_job_known_at_another_width_only() -> None:
    """T of a job that asks for 4 GPUs, and was measured on 2, is twice the measured rate."""
    problem = by_hand({"v100": 8, "k80": 8}, alone("a", "v100", 5.0, 2), gpus=4)
    assert rate_table(problem).tolist() == [[10.0, 0.0]]
    assert proportional_rates(problem).tolist() == [5.0]


def test_a_cluster_without_gpus() -> None:
    """Without GPUs, or without jobs, the rates are 0 or empty: nothing is divided by zero."""
    problem = Problem.from_rates([[1.0]], capacity=[0])
    assert proportional_rates(problem).tolist() == [0.0]
    assert isolated_rates(problem).tolist() == [0.0]
    without_jobs = Problem.from_rates(np.zeros((0, 2)), capacity=[1, 2])
    assert [len(rates(without_jobs)) for rates in (proportional_rates, isolated_rates, best_rates)] == [
        0,
        0,
        0,
    ]


@given(problem=problems())
@settings(max_examples=60)
def test_merging_does_not_change_reference_rates(problem: Problem) -> None:
    """A group has the reference rates of one of its members, because n counts jobs and not rows."""
    smaller, grouping = group(problem)
    for rates in (proportional_rates, isolated_rates, best_rates):
        assert rates(smaller)[grouping.group_of] == pytest.approx(rates(problem), rel=1e-12)


@given(problem=problems())
@settings(max_examples=60)
def test_isolated_shares_fit_into_the_cluster(problem: Problem) -> None:
    """All isolated shares together fit into the cluster, and no job has more than all of the time."""
    shares = isolated_shares(problem)
    assert (shares.sum(axis=1) <= 1 + 1e-12).all()
    assert ((problem.jobs.count * problem.jobs.gpus) @ shares <= problem.capacity * (1 + 1e-12)).all()
    assert (isolated_rates(problem) <= best_rates(problem) * (1 + 1e-12)).all()
