"""The arithmetic of data stalls: parts of the time, what a change would bring, and what would be needed of a cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training.data.stalls import (
    IN_TURN,
    PIPELINED,
    WORKERS,
    Step,
    best,
    changes,
    divided,
    fetch_rate,
    fractions,
    overlap_of,
    step_of,
    what_if,
)

rates = st.floats(0.1, 1e5)
seconds = st.floats(1e-4, 10.0)
overlaps = st.sampled_from([IN_TURN, WORKERS, PIPELINED])
steps = st.builds(Step, seconds, seconds, seconds, overlaps)


@given(st.tuples(rates, rates, rates).map(sorted))
def test_the_parts_add_up_to_the_whole_time(three: list[float]) -> None:
    """A loop that is the slower the more it really loads spends its time on just three things."""
    real, cached, synthetic = three
    assert sum(fractions(synthetic, cached, real)) == pytest.approx(1.0)


def test_a_rate_above_that_without_data_counts_as_no_wait() -> None:
    """Noise may make a loop faster with data than without; no part of the time is negative."""
    assert fractions(100.0, 101.0, 102.0)[1:] == (0.0, 0.0)


@given(rates, rates, rates, rates, st.floats(0.0, 1.0))
def test_the_slowest_part_limits_the_loop(
    cache: float, storage: float, prep: float, gpu: float, x: float
) -> None:
    """The speed is that of the part which is named; the cache that is needed makes reading as fast as the others."""
    answer = what_if(cache, storage, prep, gpu, x)
    assert {"gpu": gpu, "prep": prep, "fetch": answer.fetch_rate}[answer.bound_by] == answer.rate
    assert answer.rate <= min(gpu, prep, answer.fetch_rate)
    if answer.cache_needed is None:
        assert what_if(cache, storage, prep, gpu, 1.0).rate < min(gpu, prep)
    else:
        needed = min(answer.cache_needed, 1.0)
        assert fetch_rate(cache, storage, needed) >= min(gpu, prep) * (1 - 1e-6)


@given(steps)
def test_a_step_is_had_back_from_what_a_probe_measures(step: Step) -> None:
    """From the four rates of a loop, its parts come out, or parts that give the same speeds."""
    synthetic, loading = 1 / step.model_s, 1 / step.prep_s
    cached = step.changed(cached=1.0).rate
    recovered = step_of(synthetic, cached, step.rate, loading, step.overlap)
    assert recovered.rate == pytest.approx(step.rate, rel=0.06)
    assert recovered.changed(cached=1.0).rate == pytest.approx(cached)
    workers = {IN_TURN: 0, WORKERS: 2, PIPELINED: None}[step.overlap]
    if workers is not None or min(step.prep_s, step.model_s) > 0.1 * max(step.prep_s, step.model_s):
        assert overlap_of(synthetic, cached, loading, workers) == step.overlap


@given(steps, st.integers(1, 64))
def test_no_change_for_the_better_makes_a_loop_slower(step: Step, cpus: int) -> None:
    """More CPUs, a cache and a faster disk never hurt, and no loop is faster than its model."""
    for change in changes(step, cpus):
        assert change.speedup >= 1 - 1e-9
        assert change.rate <= 1 / step.model_s * (1 + 1e-9)


@given(steps)
def test_a_cache_of_the_needed_size_is_as_good_as_a_full_one(step: Step) -> None:
    """With the part that is needed the loop is as fast as with all of the data in the cache."""
    needed = step.cache_needed
    assert 0 <= needed <= 1
    assert step.changed(cached=needed).rate == pytest.approx(step.changed(cached=1.0).rate)


@pytest.mark.parametrize(
    ("step", "subject", "to"),
    [
        (Step(0.010, 0.018, 0.001, WORKERS), "cpus", 8),
        (Step(0.010, 0.002, 0.030, WORKERS), "cache", 1.0),
        (Step(0.010, 0.030, 0.002, IN_TURN), "cpus", 4),
        (Step(0.010, 0.012, 0.030, PIPELINED), "cache", 1.0),
    ],
)
def test_the_change_that_helps_most_is_named(step: Step, subject: str, to: float) -> None:
    """A loop that prepares too slowly wants CPUs; one that reads too slowly wants a cache; the least that does."""
    change = best(changes(step, 4))
    assert change is not None
    assert (change.subject, change.to) == (subject, to)


def test_nothing_helps_a_loop_that_computes_all_the_time() -> None:
    """No change makes the model itself faster."""
    assert best(changes(Step(0.030, 0.010, 0.005, WORKERS), 4)) is None


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        ((1.0, 3.0), (0.1, 0.3)),
        ((0.0, 0.0), (0.0, 0.0)),
        ((float("inf"), 1.0), (0.0, 0.0)),
    ],
)
def test_a_wait_is_divided_in_the_proportion_of_the_times(
    times: tuple[float, float], parts: tuple[float, float]
) -> None:
    """Nothing is known where nothing was counted."""
    assert divided(0.4, *times) == pytest.approx(parts)
