"""Estimated rates of pairs: what holds for every matrix of known fractions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.pair_estimate import REFERENCES_MIN, Floats, cleaned, complete

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 3))


@st.composite
def matrices(draw: st.DrawFn, least_types: int = 1) -> Floats:
    """Fractions of some types on some worker types, of which some are unknown and some do not fit."""
    types, worker_types = draw(st.integers(least_types, 7)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    part_known = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    part_fitting = draw(st.sampled_from([0.0, 0.7, 1.0]))
    shape = (types, types, worker_types)
    load = rng.uniform(0.1, 1.0, (types, 1, worker_types))
    fraction = np.minimum(1.0, 1.0 / (load + load.transpose(1, 0, 2))) * rng.uniform(0.8, 1.0, shape)
    fraction[rng.random(shape) > part_fitting] = 0.0
    fraction[rng.random(shape) > part_known] = np.nan
    return fraction


def fleet(types: int, hidden: int = 0) -> Floats:
    """Fractions of types of graded load on two worker types; nothing is known of the pairs of the last ones."""
    load = np.linspace(0.3, 0.9, types)
    part = np.minimum(1.0, 0.9 / (load[:, None] + load[None, :]))
    fraction = np.stack([part, part**1.2], axis=2)
    fraction[types - hidden :] = np.nan
    fraction[:, types - hidden :] = np.nan
    return fraction


@given(matrices())
def test_estimates_are_fractions_and_known_entries_stay(fraction: Floats) -> None:
    """Whatever is known, it stays as it is; whatever is estimated is within [0, 1] and has a finite deviation."""
    estimates = complete(fraction)
    known = ~np.isnan(fraction)
    assert np.array_equal(estimates.fraction[known], fraction[known])
    assert not estimates.sd[known].any()
    guessed = estimates.fraction[~known & ~np.isnan(estimates.fraction)]
    assert ((guessed >= 0) & (guessed <= 1)).all()
    assert np.array_equal(np.isnan(estimates.sd), np.isnan(estimates.fraction))
    assert (estimates.sd[~np.isnan(estimates.sd)] >= 0).all()


@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_types_changes_nothing(fraction: Floats, random: np.random.Generator) -> None:
    """Estimates of types in another order are the same estimates, up to the digit to which they are rounded."""
    order = list(range(len(fraction)))
    random.shuffle(order)
    block, estimates = np.ix_(order, order), complete(fraction)
    again = complete(fraction[block])
    np.testing.assert_allclose(again.fraction, estimates.fraction[block], atol=2e-3)
    np.testing.assert_allclose(again.sd, estimates.sd[block], atol=2e-3)
    assert np.array_equal(again.probed, estimates.probed[order])


@given(matrices(least_types=4))
def test_the_same_facts_give_the_same_estimates(fraction: Floats) -> None:
    """Two processes that know the same decide the same."""
    first, second = complete(fraction), complete(fraction.copy())
    assert first.fraction.tobytes() == second.fraction.tobytes()
    assert first.sd.tobytes() == second.sd.tobytes()


def test_one_probe_is_enough() -> None:
    """A type of which one pair is known gets estimates for all pairs, closer to the truth than the mean of others."""
    truth, fraction = fleet(8), fleet(8, hidden=1)
    mean = complete(fraction)
    assert not mean.probed[7]
    fraction[7, 2, 0], fraction[2, 7, 0] = truth[7, 2, 0], truth[2, 7, 0]
    estimates = complete(fraction)
    assert estimates.probed.all()
    assert not np.isnan(estimates.fraction).any()
    error, error_of_mean = (np.abs(each.fraction - truth)[7].mean() for each in (estimates, mean))
    assert error < error_of_mean / 2


def test_uncertainty_falls_with_probes() -> None:
    """Each probe of a type lowers the sum of its standard deviations."""
    truth, fraction = fleet(10), fleet(10, hidden=1)
    sums = []
    for partner in range(5):
        sums.append(complete(fraction).sd[9].sum())
        fraction[9, partner], fraction[partner, 9] = truth[9, partner], truth[partner, 9]
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < sums[0] / 2


@pytest.mark.parametrize("types", range(REFERENCES_MIN))
def test_without_references_nothing_is_estimated(types: int) -> None:
    """Fewer types with known pairs than a spread needs give no estimate."""
    fraction = np.full((6, 6, 1), np.nan)
    fraction[:types, :types] = 0.7
    assert np.isnan(complete(fraction).fraction[types:]).all()


def test_pairs_that_do_not_fit_stay_known_and_teach_nothing() -> None:
    """A 0 is a matter of memory: it stays, and estimates of other pairs are as if that pair were unknown."""
    fraction = fleet(8, hidden=1)
    fraction[7, 0], fraction[0, 7] = 0.8, 0.6
    unknown = complete(fraction)
    fraction[7, 1] = fraction[1, 7] = 0.0
    does_not_fit = complete(fraction)
    assert not does_not_fit.fraction[7, 1].any()
    np.testing.assert_array_equal(unknown.fraction[7, 2:], does_not_fit.fraction[7, 2:])


def test_a_type_that_fits_with_none_is_not_probed() -> None:
    """Knowing only that pairs do not fit says nothing about those that do."""
    fraction = fleet(8, hidden=1)
    fraction[7, 1] = fraction[1, 7] = 0.0
    assert not complete(fraction).probed[7]


@given(st.sampled_from([np.nan, -1.0, -np.inf, np.inf, 1e300, 1.5, -0.0, 5e-324]))
def test_absurd_fractions_are_clamped(value: float) -> None:
    """Measurements may be wrong by any factor: estimates stay fractions, and what is no number is unknown."""
    fraction = fleet(6)
    fraction[0, 1, 0] = value
    kept = cleaned(fraction)[0, 1, 0]
    assert np.isnan(kept) if not (np.isfinite(value) and value >= 0) else kept == min(value, 1.0)
    completed = complete(fraction).fraction
    assert ((completed >= 0) & (completed <= 1)).all()
