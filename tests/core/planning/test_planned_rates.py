"""Predictions of plans that were not measured: computation and exchanges are corrected each by its own factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.planning.planned_rates import fit, planned_rates
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.throughput import RateKey
from tests.support.desk import job

PARTS = st.lists(st.floats(0, 1), min_size=4, max_size=8)


def gpt(parts: Sequence[float], *, exchange: bool = True) -> JobSpec:
    """A job with a plan for 1, 2, … GPUs whose steps have these parts of exchanges, whether or not its plans say so."""
    plans = tuple(
        Plan(worker_type="v100", gpus=gpus, label="p", rate=float(gpus), exchange=part if exchange else 0.0)
        for gpus, part in enumerate(parts, 1)
    )
    return job(job_type="gpt", gpus=1, gpus_max=len(parts), plans=plans)


def measured(spec: JobSpec, slower: Sequence[float], *, noise: float = 0.0, seed: int = 0) -> SchedulerState:
    """A state in which the narrowest plans were measured, which take so many times as long as predicted."""
    state, chance = SchedulerState(), Random(seed)
    for plan, times in zip(spec.plans, slower, strict=False):
        key = RateKey("gpt", plan.gpus, "v100", plan="p")
        state.rates.observe(key, plan.rate / times * math.exp(chance.gauss(0.0, noise)) * 1e6, 1e6, 60.0)
    return state


def truth(parts: Sequence[float], computing: float, exchanging: float) -> list[float]:
    """How many times as long as predicted each plan takes if computation and exchanges take so many times as long."""
    return [computing * (1.0 - part) + exchanging * part for part in parts]


def error(
    parts: Sequence[float], slower: Sequence[float], count: int = 3, *, exchange: bool = True, **noise: float
) -> float:
    """The mean error of the plans that were not measured, relative to their true rates."""
    spec = gpt(parts, exchange=exchange)
    rates = planned_rates(measured(spec, slower[:count], **noise), spec, "v100")
    return fmean(
        abs(math.log(rates[gpus] * slower[gpus - 1] / gpus)) for gpus in range(count + 1, len(parts) + 1)
    )


def test_a_slower_network_corrects_the_plans_that_exchange_more() -> None:
    """Computation takes 1.3 times as long, exchanges twice: three narrow plans predict the others, their median not."""
    parts = [0.05, 0.12, 0.2, 0.3, 0.42, 0.55]
    slower = truth(parts, 1.3, 2.0)
    assert error(parts, slower) < 0.05
    assert error(parts, slower, exchange=False) > 0.2


def test_plans_with_equal_parts_are_corrected_by_the_median() -> None:
    """Nothing tells computation and exchanges apart then, nor if plans do not say how much they exchange."""
    for exchange in (True, False):
        spec = gpt([0.2] * 4, exchange=exchange)
        rates = planned_rates(measured(spec, [2.0, 2.0, 8.0]), spec, "v100")
        # The median of 1/2, 1/2 and 1/8, three fifths of the way from 1.
        assert rates[4] == pytest.approx(4.0 * 0.7)


def test_other_types_keep_their_predictions() -> None:
    """What was measured on one type says nothing about others."""
    other = Plan(worker_type="k80", gpus=1, label="p", rate=1.0, exchange=0.5)
    spec = job(job_type="gpt", gpus_max=4, plans=(*gpt([0.1, 0.2, 0.3, 0.4]).plans, other))
    assert planned_rates(measured(spec, [2.0, 2.0, 2.0]), spec, "k80") == {1: 1.0}


@pytest.mark.parametrize(("noise", "part"), [(0.0, 0.25), (0.03, 0.4), (0.1, 0.75)])
def test_predictions_are_better_than_by_the_median(noise: float, part: float) -> None:
    """In the mean over 200 jobs with different plans and factors, errors are at most this part of the median's."""
    chance, fitted, by_median = Random(1), [], []
    for seed in range(200):
        parts = sorted(chance.uniform(0.0, 0.6) for _ in range(7))
        slower = truth(parts, chance.uniform(0.6, 1.6), chance.uniform(0.5, 2.5))
        fitted.append(error(parts, slower, noise=noise, seed=seed))
        by_median.append(error(parts, slower, noise=noise, seed=seed, exchange=False))
    assert fmean(fitted) <= part * fmean(by_median)


@given(PARTS, st.floats(0.5, 2.0), st.floats(0.5, 3.0))
def test_predictions_are_no_worse_than_by_the_median(
    parts: list[float], computing: float, exchanging: float
) -> None:
    """Of any plans that computation and exchanges explain, but for luck of the median within measuring noise."""
    slower = truth(parts, computing, exchanging)
    assert error(parts, slower) <= error(parts, slower, exchange=False) + 0.1


@given(PARTS, st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=8))
def test_predictions_are_finite_and_above_zero(parts: list[float], slower: list[float]) -> None:
    """Whatever was measured; a prediction is at most twice as far off as the measurements are."""
    spec = gpt(parts)
    rates = planned_rates(measured(spec, slower), spec, "v100")
    assert all(0.0 < rate < math.inf for rate in rates.values())
    assert list(rates) == [plan.gpus for plan in spec.plans]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=3, max_size=8))
def test_no_factor_is_negative(points: list[tuple[float, float]]) -> None:
    """Neither computation nor exchanges take negative time, and equal points have equal factors in any order."""
    factors = fit(points)
    assert all(0.0 <= factor < math.inf for factor in factors)
    assert max(factors) > 0.0
    assert fit(points[::-1]) == pytest.approx(factors, rel=1e-6, abs=1e-6)
