"""What a loop waits for: the whole without eyes in the workers, the parts and the rates with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import LeasedIterator, end, iterator, progress, report
from gavel.training.data.counters import Counters
from gavel.training.data.waits import Waits
from tests.training.leases import RunDirectory, under_a_lease
from tests.training.test_progress import Slow


def loader(workers: Any = 2, batch: Any = 4, hits: int = 0) -> Any:
    """Return a loader whose data set has counted 40 samples: 10 ms to read and 30 ms to prepare each."""
    counters = Counters()
    for index in range(40):
        counters.add(fetch_s=0.010, prepare_s=0.030, size=500, from_cache=index < hits)
    return SimpleNamespace(dataset=SimpleNamespace(counters=counters), num_workers=workers, batch_size=batch)


def test_without_counters_only_the_wait_is_known() -> None:
    """Its parts are absent, and not 0."""
    assert Waits([1], 4.0).measured(10.0, 0.5) == pytest.approx({"wait": 0.4, "gpu_rate": 1 / 0.3})
    assert Waits([1], 4.0).measured(10.0, None) == {"wait": 0.4}


def test_nothing_counted_yet_divides_nothing() -> None:
    """A data set that has given no sample says nothing."""
    empty = SimpleNamespace(dataset=SimpleNamespace(counters=Counters()), num_workers=2, batch_size=4)
    assert Waits(empty, 4.0).measured(10.0, None) == {"wait": 0.4}


def test_counters_divide_the_wait_and_give_rates() -> None:
    """A wait of 40 % is a quarter reading; two workers prepare batches of four samples of 30 ms in 60 ms."""
    values = Waits(loader(), 4.0).measured(10.0, 0.5)
    assert values == pytest.approx(
        {
            "wait": 0.4,
            "gpu_rate": 1 / 0.3,
            "fetch": 0.1,
            "prep": 0.3,
            "cached": 0.0,
            "sample_bytes": 500.0,
            "prep_rate": 1 / 0.060,
            "storage_rate": 1 / 0.020,
            "workers": 2.0,
        }
    )
    half = Waits(loader(hits=20), 4.0).measured(10.0, 0.5)
    assert (half["cached"], half["cache_rate"], half["storage_rate"]) == pytest.approx((0.5, 50.0, 50.0))


def test_the_workers_of_a_rank_are_those_of_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts several processes for a rank of Gavel, each with a loader of its own."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Waits(loader()).measured(10.0, 0.5)["workers"] == 2.0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert Waits(loader()).measured(10.0, 0.5)["workers"] == 8.0


def test_waits_are_recent() -> None:
    """A minute after an epoch from storage, only what comes from the cache counts; rates are those of all the time."""
    data = loader()
    waits = Waits(data)
    # 40 s of waiting for 0.7 s of each second, then 80 s of waiting for 0.05 s.
    for second in range(1, 121):
        cold = second <= 40
        waits.waited_s += 0.7 if cold else 0.05
        data.dataset.counters.add(fetch_s=0.5 if cold else 0.001, prepare_s=0.005, from_cache=not cold)
        values = waits.measured(second, 1.0)
        if second == 40:
            assert (values["wait"], values["cached"]) == pytest.approx((0.7, 0.0))
            assert values["fetch"] > 10 * values["prep"]
    assert (values["wait"], values["cached"]) == pytest.approx((0.05, 1.0))
    assert values["prep"] > values["fetch"]
    assert values["gpu_rate"] == pytest.approx(120 / (120 - 40 * 0.7 - 80 * 0.05))


def test_of_long_steps_some_count() -> None:
    """A minute may have no step that takes five; the waits are those of the last twenty steps, whenever one looks."""
    waits = Waits([1])
    for step in range(1, 61):
        waits.waited_s += 30.0 if step <= 30 else 150.0
        for second in range(0, 300, 20):
            wait = waits.measured(step * 300.0 + second, 300.0)["wait"]
        if step == 30:
            assert wait == pytest.approx(0.1, rel=0.1)
    assert wait == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(("workers", "batch"), [(0, 4), (None, 4), (2, None), (2, 0)])
def test_a_loop_that_loads_its_own_data_has_no_rates_of_loading(workers: Any, batch: Any) -> None:
    """More CPUs would not help it, so no such rate may promise that they do."""
    values = Waits(loader(workers, batch), 4.0).measured(10.0, 0.5)
    assert values.keys().isdisjoint({"prep_rate", "storage_rate", "cache_rate"})
    assert values["prep"] == pytest.approx(0.3)


def test_a_loop_that_loads_its_own_data_says_so() -> None:
    """Its whole wait is loading, so that it is known without counters how much faster it would be with workers."""
    assert Waits(loader(workers=0), 4.0).measured(10.0, 0.5)["workers"] == 0.0
    without = SimpleNamespace(dataset=[1], num_workers=0, batch_size=4)
    assert Waits(without, 4.0).measured(10.0, 0.5) == pytest.approx(
        {"wait": 0.4, "gpu_rate": 1 / 0.3, "workers": 0.0}
    )
    assert "workers" not in Waits([1], 4.0).measured(10.0, 0.5)


def test_a_loop_of_ones_own_has_an_unknown_wait(tmp_path: Path) -> None:
    """A script without a LeasedIterator reports steps, and no wait; one with it reports both."""
    with under_a_lease(RunDirectory(tmp_path / "own").environ()) as session:
        for step in range(1, 4):
            report(step)
        assert "wait" not in session.progress.measured(1e9, 3)
        end(3, saved=3, finished=True)
    with under_a_lease(RunDirectory(tmp_path / "iterator").environ()) as session:
        assert len(list(LeasedIterator(range(4), checkpoint=Slow(), steps=12))) == 8
        assert "wait" in session.progress.measured(1e9, 12)


def test_first_batches_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that starts slowly starves short passes. Only its first start in a lease is a part of the job's."""
    now_s = 0.0

    class Loader:
        """Four batches, the first of which takes 10 s and the others 1 s."""

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[int]:
            nonlocal now_s
            now_s += 9.0
            for batch in range(4):
                now_s += 1.0
                yield batch

    monkeypatch.setattr(
        iterator, "time", SimpleNamespace(perf_counter=lambda: now_s, monotonic=lambda: now_s)
    )
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s))
    with under_a_lease(RunDirectory(tmp_path / "run").environ()) as session:
        steps = LeasedIterator(Loader(), checkpoint=Slow())
        # It resumes after the first pass, and does three.
        for _ in steps.epochs(4):
            for _ in steps:
                now_s += 0.5
            # The script validates.
            now_s += 20.0
        assert session.progress.waits is not None
        assert session.progress.waits.waited_s == 3 * 3.0 + 2 * 10.0
        assert session.progress.stepping_s(now_s) == now_s - 10.0
