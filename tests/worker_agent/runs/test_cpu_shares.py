"""The CPUs of a node are divided by GPUs, or as jobs ask; ranks get the loader workers that they can use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker_agent.core.messages import Launch, Order
from worker_agent.runs.cpu_shares import fair_cpus, loader_workers


def order(gpus: int = 1, *, per_node: bool = False, **more: float | bool) -> Order:
    """Return an order for so many GPUs."""
    launch = Launch(command=("train",), ranks="per_node" if per_node else "per_gpu")
    return Order("17", "12", 1, tuple(range(gpus)), 9.0, launch=launch, **more)  # type: ignore[arg-type]


def test_a_fair_share_is_that_of_the_gpus() -> None:
    """A job that asks for more gets what it asks for; two that are packed share their part."""
    assert fair_cpus(order(), cpus=24.0, gpus=8) == 3.0
    assert fair_cpus(order(2), cpus=24.0, gpus=8) == 6.0
    assert fair_cpus(order(2, packed=True), cpus=24.0, gpus=8) == 3.0
    assert fair_cpus(order(cpus=2.0), cpus=24.0, gpus=8) == 3.0
    assert fair_cpus(order(cpus=9.0), cpus=24.0, gpus=8) == 9.0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.floats(0.5, 256), st.booleans())
def test_fair_shares_are_no_more_than_the_node(parts: list[int], cpus: float, packed: bool) -> None:
    """Of jobs that ask for none, each has some and together they have at most all; with pairs on their GPUs, too."""
    runs = [order(gpus, packed=packed) for gpus in parts for _ in range(1 + packed)]
    shares = [fair_cpus(run, cpus=cpus, gpus=sum(parts)) for run in runs]
    assert min(shares) > 0
    assert sum(shares) <= cpus * (1 + 1e-9)


def test_a_rank_gets_the_workers_of_its_share_or_more_if_they_are_useful() -> None:
    """Never fewer than its share, nor more than its node has CPUs, nor none."""
    node = {"cpus": 24.0, "gpus": 8}
    assert loader_workers(order(), **node) == 3
    assert loader_workers(order(2), **node) == 3
    assert loader_workers(order(2, per_node=True), **node) == 6
    assert loader_workers(order(workers=5), **node) == 5
    assert loader_workers(order(workers=2), **node) == 3
    assert loader_workers(order(workers=1000), **node) == 24
    assert loader_workers(order(4, workers=1000), **node) == 6
    assert loader_workers(order(), cpus=20.0, gpus=8) == 3
    assert loader_workers(order(8), cpus=2.0, gpus=8) == 1


@given(st.integers(1, 8), st.floats(0.5, 256), st.integers(0, 10**6), st.booleans())
def test_the_workers_of_a_run_fit_on_its_node(gpus: int, cpus: float, workers: int, per_node: bool) -> None:
    """All its ranks together have as many as the node has CPUs, but for rounding up the share of each."""
    count = loader_workers(order(gpus, per_node=per_node, workers=workers), cpus=cpus, gpus=8)
    ranks = 1 if per_node else gpus
    assert 1 <= count < cpus / ranks + 1
    assert count >= min(workers, cpus // ranks)
