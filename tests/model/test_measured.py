"""The book of what jobs have measured: what it accepts, and which times follow from it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.measured import (
    MERGE,
    POOL,
    TIME_MAX_S,
    WORKERS_MAX,
    MeasuredBook,
    PoolKey,
    extra_save_s,
    failure_s,
    quantised,
    restart_s,
    useful_workers,
    whole_workers,
)
from scheduler.model.node_losses import NodeLosses, mtbf_s
from worker_agent.core.measured import _MERGE as agents_merge

KEY = PoolKey("ann", "resnet", 2, "v100")
COSTS = {"final_save_s": 10.0, "start_s": 4.0, "load_s": 1.0}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_wrong_value_is_dropped_alone(wrong: float) -> None:
    """The other keys of the same report count."""
    assert quantised({"stall_s": wrong, "start_s": 1.0}) == {"start_s": 1.0}


def test_unknown_keys_are_dropped() -> None:
    """10,000 unknown keys are not kept."""
    assert quantised({f"key-{number}": 1.0 for number in range(10_000)}) == {}


def test_values_are_kept_in_steps() -> None:
    """A change of 1 % is mostly none, one of 6 % always is one; a value differs from its step by 2.5 % at most."""
    assert quantised({"step_s": 0.0}) == {"step_s": 0.0}
    for value in (1e-6, 0.3, 12.0, 599.0, 1e12):
        (step,) = quantised({"step_s": value}).values()
        assert step == pytest.approx(value, rel=0.026)
        assert quantised({"step_s": step})["step_s"] == step
        assert quantised({"step_s": value * 1.06})["step_s"] > step


def test_a_job_without_values_costs_the_median_of_its_pool() -> None:
    """Its own values come first; a pool of another user, type, width or worker type has none for it."""
    book = MeasuredBook()
    assert book.time_s("9", KEY, restart_s) is None
    for number, save_s in enumerate((10.0, 20.0, 90.0)):
        book.enter(str(number), KEY, {**COSTS, "final_save_s": save_s})
    assert book.time_s("9", KEY, restart_s) == 25.0
    assert book.time_s("0", KEY, restart_s) == 15.0
    for other in (KEY._replace(user="bob"), KEY._replace(gpus=1), KEY._replace(worker_type="k80")):
        assert book.time_s("9", other, restart_s) is None


def test_a_pool_has_one_value_of_each_of_the_last_jobs() -> None:
    """A job that reports often is one of nine like any other."""
    book = MeasuredBook()
    for number in range(POOL + 3):
        book.enter(str(number), KEY, COSTS)
    for _ in range(20):
        book.enter("5", KEY, {"final_save_s": 1e9})
    assert list(book.pools[KEY]) == ["3", "4", "6", "7", "8", "9", "10", "11", "5"]
    assert book.time_s("99", KEY, restart_s) == 15.0


def test_a_lie_is_clamped() -> None:
    """No decision uses more than ten minutes."""
    book = MeasuredBook()
    book.enter("1", KEY, {"final_save_s": 1e18, "start_s": 1e18, "interval": 1e9, "step_s": 1e9})
    assert book.time_s("1", KEY, restart_s) == book.time_s("1", KEY, failure_s) == TIME_MAX_S
    assert extra_save_s(1e18, round_s=360.0) == 72.0


@pytest.mark.parametrize(
    ("save_s", "extra_s"), [(None, 0.0), (10.0, 0.0), (20.0, 5.0), (40.0, 35.0), (600.0, 72.0)]
)
def test_a_long_save_gets_more_time(save_s: float | None, extra_s: float) -> None:
    """Once and a half the length of the last ones, if that is more than usual, up to a fifth of the round more."""
    assert extra_save_s(save_s, round_s=360.0) == extra_s


def test_a_cost_is_unknown_until_all_of_it_was_measured() -> None:
    """A job that has started, but never saved, costs what the settings say."""
    assert restart_s({"start_s": 3.0}) is None
    assert restart_s({"final_save_s": 3.0}) is None
    assert restart_s({"final_save_s": 3.0, "start_s": 4.0}) == 7.0
    assert failure_s({"interval": 40.0, "step_s": 0.5}) is None
    assert (
        failure_s({"interval": 40.0, "step_s": 0.5, "start_s": 4.0, "durable_s": 1.0, "load_s": 2.0}) == 17.0
    )


def test_the_nodes_of_a_gang_are_merged() -> None:
    """The greatest cost, the least rate and the sum of bytes, of the nodes where the gang runs now."""
    book, gang = MeasuredBook(), ("n1", "n2")
    book.enter("1", KEY, {"stall_s": 3.0, "gpu_rate": 5.0, "bytes": 10.0}, "n1", gang)
    book.enter("1", KEY, {"stall_s": 1.0, "gpu_rate": 4.0, "bytes": 20.0, "wait": 0.5}, "n2", gang)
    assert book.of("1") == {"stall_s": 3.0, "gpu_rate": 4.0, "bytes": 30.0, "wait": 0.5}
    assert MeasuredBook(book.rows()).known("1", KEY, "n2")["wait"] == 0.5
    book.enter("1", KEY, {"stall_s": 2.0}, "n1", gang)
    assert book.of("1")["stall_s"] == 2.0
    book.enter("1", KEY, {"bytes": 7.0, "stall_s": 1.5}, "n3", ("n2", "n3"))
    assert book.of("1") == {"stall_s": 1.5, "gpu_rate": 4.0, "bytes": 27.0, "wait": 0.5}
    book.enter("1", KEY, {"bytes": 1.0})
    assert (book.of("1")["bytes"], book.known("1", KEY, "n2")) == (1.0, {})


def test_agents_and_the_scheduler_merge_alike() -> None:
    """A gang's values do not depend on how its ranks are spread over nodes."""
    assert {key: merge for key, merge in MERGE.items() if key != "start_s"} == agents_merge


def test_a_book_survives_a_snapshot() -> None:
    """The order of a pool is part of it: the oldest job leaves first."""
    book = MeasuredBook()
    for name in ("3", "1", "2"):
        book.enter(name, KEY, COSTS)
    again = MeasuredBook(book.rows())
    assert again.rows() == book.rows()
    assert list(again.pools[KEY]) == ["3", "1", "2"]


def test_forgotten_jobs_leave_the_book() -> None:
    """The pool remains as long as jobs of its type do."""
    book = MeasuredBook()
    book.enter("1", KEY, COSTS)
    book.forget(["1"], [])
    assert (book.of("1"), book.time_s("2", KEY, restart_s)) == ({}, 15.0)
    book.forget([], ["resnet"])
    assert book.time_s("2", KEY, restart_s) is None


def test_losses_of_nodes_give_the_time_between_them() -> None:
    """Twice the GPUs fail twice as often; a young cluster counts as one of 100 GPU hours."""
    losses = {
        "v100": NodeLosses(gpu_s=400 * 3600.0, losses=2),
        "k80": NodeLosses(60.0, 1),
        "p100": NodeLosses(9e9, 0),
    }
    assert mtbf_s(losses, "v100", 1) == 200 * 3600.0
    assert mtbf_s(losses, "v100", 4) == 50 * 3600.0
    assert mtbf_s(losses, "k80", 1) == 100 * 3600.0
    assert mtbf_s(losses, "p100", 1) == mtbf_s(losses, "a100", 1) == 0.0


positive = st.floats(1e-3, 1e3)


@given(positive, positive, positive, positive, st.floats(0, 1), st.integers(1, 64))
def test_with_the_useful_workers_a_loop_would_not_wait(
    step_s: float, prep_s: float, storage_s: float, cache_s: float, cached: float, workers: int
) -> None:
    """So many workers give a batch in the time of a step, and fewer do not, however many measured it."""
    work_s = prep_s + (1 - cached) * storage_s + cached * cache_s
    rates = {"prep_rate": prep_s, "storage_rate": storage_s, "cache_rate": cache_s}
    values = {name: workers / seconds for name, seconds in rates.items()}
    useful = useful_workers({**values, "workers": workers, "gpu_rate": 1 / step_s, "cached": cached})
    assert useful == pytest.approx(work_s / step_s)
    assert whole_workers(useful) >= min(useful, WORKERS_MAX)
    assert whole_workers(useful) < useful + 1


def test_what_is_unknown_makes_no_workers() -> None:
    """Without workers, a rate of the loop or one of preparation nothing follows; reading counts where it is known."""
    values = {"workers": 2.0, "gpu_rate": 10.0, "prep_rate": 5.0}
    assert useful_workers(values) == pytest.approx(4.0)
    assert useful_workers({**values, "cached": 0.5, "storage_rate": 0.0}) == pytest.approx(4.0)
    assert useful_workers({**values, "cached": 0.5, "storage_rate": 10.0}) == pytest.approx(5.0)
    for key in values:
        assert useful_workers({name: value for name, value in values.items() if name != key}) is None
        assert useful_workers({**values, key: 0.0}) is None


def test_a_new_job_gets_the_workers_of_its_type() -> None:
    """The median of its pool, until it has values of its own; nothing makes it ask for a million."""
    book = MeasuredBook()
    assert book.workers("9", KEY) == 0
    for number, rate in enumerate((5.0, 6.0, 1e9)):
        book.enter(str(number), KEY, {"workers": 2.0, "gpu_rate": rate, "prep_rate": 4.0})
    assert (book.workers("9", KEY), book.workers("0", KEY), book.workers("2", KEY)) == (3, 3, WORKERS_MAX)
    assert book.workers("9", KEY._replace(user="bob")) == 0


def loading(workers: float, gpu_rate: float, prep_rate: float) -> dict[str, float]:
    """Return what a job measures whose loop needs `workers * gpu_rate / prep_rate` loader workers."""
    return {"workers": workers, "gpu_rate": gpu_rate, "prep_rate": prep_rate}


def test_a_gang_gets_the_workers_that_its_neediest_node_needs() -> None:
    """Nodes with 3 and 8 workers that need 10 and 12 give 12, also for its pool and when the job is forgotten."""
    book, gang = MeasuredBook(), ("n1", "n2")
    book.enter("1", KEY, loading(3.0, 10.0, 3.0), "n1", gang)
    book.enter("1", KEY, loading(8.0, 12.0, 8.0) | {"bytes": 1.0}, "n2", gang)
    assert (book.workers("1", KEY), book.own_workers("1")) == (12, pytest.approx(12.0))
    assert book.workers("new", KEY) == 12
    again = MeasuredBook(book.rows())
    assert (again.workers("1", KEY), again.workers("new", KEY)) == (12, 12)
    again.forget(["1"], [])
    assert again.workers("new", KEY) == 12
    # Without what a node needs for this, the merged values are all there is.
    book.enter("2", KEY, {"gpu_rate": 3.0}, "n1", gang)
    assert (book.own_workers("2"), book.own_workers("unknown")) == (None, None)


def test_a_job_gets_the_workers_that_jobs_need_on_the_same_gpus() -> None:
    """Measured on a K80, a job needs one worker; on a V100 it gets those of its type, if any job measured there."""
    k80, v100 = KEY._replace(worker_type="k80"), KEY
    book = MeasuredBook()
    book.enter("1", k80, loading(4.0, 1.0, 4.0))
    assert (book.workers("1", k80), book.workers("1", v100)) == (1, 1)
    book.enter("2", v100, loading(4.0, 10.0, 4.0))
    assert (book.workers("1", v100), book.workers("new", v100)) == (10, 10)
    assert (book.workers("2", k80), book.workers("new", k80)) == (1, 1)
    wide = v100._replace(gpus=4)
    book.enter("3", wide, loading(4.0, 6.0, 4.0))
    assert (book.workers("1", wide), book.workers("3", wide), book.workers("3", v100)) == (6, 6, 10)


@pytest.mark.parametrize("node", ["", "n1"])
def test_rates_of_other_gpus_do_not_mix_with_those_of_these(node: str) -> None:
    """A start on a V100 drops what was measured of loading on a K80, also by node; the times stay."""
    k80, v100 = KEY._replace(worker_type="k80"), KEY
    book, gang = MeasuredBook(), [node] if node else []
    book.enter("1", k80, {**COSTS, **loading(4.0, 1.0, 4.0), "wait": 0.5}, node, gang)
    assert (book.known("1", k80, node)["workers"], book.known("1", v100, node)) == (4.0, COSTS)
    book.enter("1", v100, {"start_s": 2.0}, node, gang)
    assert book.of("1") == {**COSTS, "start_s": 2.0}
    assert (book.workers("1", v100), book.workers("new", v100), book.workers("new", k80)) == (0, 0, 1)
    assert (book.time_s("1", v100, restart_s), book.time_s("1", k80, restart_s)) == (13.0, 13.0)
    book.enter("1", v100, loading(4.0, 10.0, 4.0), node, gang)
    assert book.workers("1", v100) == 10
