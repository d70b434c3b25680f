"""Placement: running jobs keep their GPUs, a gang gets as few nodes as possible, and few jobs move to make room."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.lease import GpuId, node_of, nodes_of
from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import Held, Need, RoundInputs
from scheduler.rounds.plan import plan_round
from tests.support.rounds import Column, column, hold, node, nodes, round_of


def places(inputs: RoundInputs) -> dict[str, tuple[GpuId, ...]]:
    """Plan the round, pass the audit, and return the GPUs by jobs, as "a" or "a+b"."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return {"+".join(bundle.jobs): gpus for bundle, gpus in plan.placements.items()}


def moved(held: dict[str, Held], where: dict[str, tuple[GpuId, ...]]) -> set[str]:
    """Return the running jobs whose GPUs have changed."""
    new_gpus = {job: gpus for jobs, gpus in where.items() for job in jobs.split("+")}
    return {job for job, old in held.items() if new_gpus.get(job) != old.gpus}


def running(*gpus: GpuId) -> tuple[list[Column], dict[str, Held]]:
    """Return the columns and the leases of running single-GPU jobs, one on each of these GPUs."""
    columns = [column(f"r{i}") for i in range(len(gpus))]
    held = {job: lease for i, gpu in enumerate(gpus) for job, lease in hold(f"r{i}", gpu).items()}
    return columns, held


# ---------------------------------------------------------------------------------------- in place


def test_a_job_that_runs_on_stays() -> None:
    """A column that runs again keeps its GPUs, in their order."""
    held = {**hold("a", "n1:3", "n0:2"), **hold("b", "n1:0")}
    where = places(round_of([column("a", gpus=2), column("b"), column("c")], nodes(2, 4), held))
    assert where["a"] == ("n1:3", "n0:2")
    assert where["b"] == ("n1:0",)


def test_the_survivor_of_a_pair_stays() -> None:
    """If one job of a pair leaves, the other continues on its GPUs."""
    where = places(round_of([column("a"), column("c")], nodes(3), hold("a b", "n1:0")))
    assert where["a"] == ("n1:0",)


def test_a_partner_comes_to_the_running_job() -> None:
    """A pair of a running job and a new one runs on the GPUs of the running job."""
    where = places(round_of([column("a b"), column("c")], nodes(3), hold("b", "n1:0")))
    assert where["a+b"] == ("n1:0",)


def test_another_width_or_type_or_label_is_another_run() -> None:
    """A job whose width or label changes is placed like a new one: here, on a node where no gang needs its room."""
    held = {**hold("a", "n1:0"), **hold("b", "n1:1", "n1:2", label="tp")}
    where = places(round_of([column("a", gpus=4), column("b", gpus=2)], nodes(2, 4), held))
    assert len(nodes_of(where["a"])) == len(nodes_of(where["b"])) == 1
    assert where["b"] != ("n1:1", "n1:2")


# ------------------------------------------------------------------------------------- few nodes


def test_a_gang_is_placed_on_one_node() -> None:
    """A gang is placed on one node if one has room; of several, on the one with the least room to spare."""
    columns, held = running("n0:0", "n1:0", "n1:1")
    where = places(round_of([*columns, column("gang", gpus=2)], nodes(3, 4), held))
    assert nodes_of(where["gang"]) == ("n1",)
    assert moved(held, where) == set()


def test_wide_gangs_are_placed_first() -> None:
    """A narrower gang that ranks above a wide one does not take its only node."""
    columns = [column("narrow", gpus=2), column("wide", gpus=4, entitled_s=1)]
    where = places(round_of(columns, [node("big", 4), node("small", 2)]))
    assert nodes_of(where["wide"]) == ("big",)


def test_a_gang_wider_than_any_node_takes_whole_nodes() -> None:
    """Six GPUs of nodes of four: one whole node, and half of another."""
    columns, held = running("n0:0")
    where = places(round_of([*columns, column("gang", gpus=6)], nodes(3, 4), held))
    assert len(nodes_of(where["gang"])) == 2


def test_single_gpus_leave_room_for_gangs() -> None:
    """New jobs of one GPU fill the nodes that are half full already."""
    columns, held = running("n1:0")
    where = places(round_of([*columns, column("a"), column("b")], nodes(3, 4), held))
    assert {node_of(where[job][0]) for job in "ab"} == {"n1"}


# ------------------------------------------------------------------------------- clearing a node


def test_the_node_with_the_fewest_jobs_is_cleared() -> None:
    """The gang is not spread over fragments: it gets the node from which the fewest jobs have to move."""
    columns, held = running("n0:0", "n0:1", "n1:0", "n2:0", "n2:1")
    where = places(round_of([*columns, column("gang", gpus=4)], nodes(3, 4), held))
    assert nodes_of(where["gang"]) == ("n1",)
    assert moved(held, where) == {"r2"}


def test_a_pair_counts_as_two_jobs() -> None:
    """Moving one pair costs as much as moving two jobs."""
    held = {**hold("a b", "n0:0"), **hold("c", "n1:0")}
    where = places(round_of([column("a b"), column("c"), column("gang", gpus=2)], nodes(2, 2), held))
    assert moved(held, where) == {"c"}


def test_pinned_jobs_are_not_moved() -> None:
    """A node with a pinned job is not cleared: the gang spreads over two nodes."""
    columns, held = running("n0:0", "n1:0")
    held = {job: Held(lease.bundle, lease.gpus, pinned=True) for job, lease in held.items()}
    where = places(round_of([*columns, column("gang", gpus=4)], nodes(2, 4), held))
    assert len(nodes_of(where["gang"])) == 2


def fewest_moves(widths: list[int], node_gpus: int, jobs_on: list[int]) -> int:
    """Return the fewest jobs that must move so that each gang, wider than half a node, gets a node; try every way."""
    return min(
        sum(
            max(width - (node_gpus - jobs_on[index]), 0) for width, index in zip(widths, indices, strict=True)
        )
        for indices in permutations(range(len(jobs_on)), len(widths))
    )


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_as_few_jobs_as_possible_have_to_move(chance: Random) -> None:
    """However fragmented the nodes are, no assignment of nodes to the gangs moves fewer running jobs."""
    node_gpus = chance.choice([2, 4])
    jobs_on = [chance.randint(0, node_gpus) for _ in range(chance.randint(1, 5))]
    free = sum(node_gpus - count for count in jobs_on)
    widths: list[int] = []
    while len(widths) < len(jobs_on):
        width = chance.randint(node_gpus // 2 + 1, node_gpus)
        if sum(widths) + width > free:
            break
        widths.append(width)
    columns, held = running(*(f"n{i}:{k}" for i, count in enumerate(jobs_on) for k in range(count)))
    gangs = [column(f"g{i}", gpus=width) for i, width in enumerate(widths)]
    where = places(round_of([*columns, *gangs], nodes(len(jobs_on), node_gpus), held))
    assert len(where) == len(columns) + len(gangs)
    assert {len(nodes_of(where[f"g{i}"])) for i in range(len(gangs))} <= {1}
    assert fewest_moves(widths, node_gpus, jobs_on) == len(moved(held, where))


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_one_gang_clears_the_cheapest_node(chance: Random) -> None:
    """A gang among running jobs of different widths is placed where the fewest jobs have to leave."""
    held: dict[str, Held] = {}
    columns: list[Column] = []
    costs: list[int] = []
    width = 4
    for i in range(4):
        widths: list[int] = []
        while sum(widths) < width and chance.random() < 0.7:
            widths.append(chance.randint(1, min(2, width - sum(widths))))
        start = 0
        for k, job_width in enumerate(widths):
            job = f"r{i}{k}"
            held |= hold(job, *(f"n{i}:{start + x}" for x in range(job_width)))
            columns.append(column(job, gpus=job_width))
            start += job_width
        costs.append(len(widths))
    free = 16 - sum(len(lease.gpus) for lease in held.values())
    if free >= width:
        where = places(round_of([*columns, column("gang", gpus=width)], nodes(4, 4), held))
        (node_name,) = nodes_of(where["gang"])
        assert costs[int(node_name[1:])] == min(costs)


# ------------------------------------------------------------------------------------------- needs


def test_only_named_nodes() -> None:
    """A job that names its nodes runs on one of them, and a job that can run elsewhere makes room."""
    columns, held = running("n0:0")
    inputs = round_of([*columns, column("a")], nodes(2), held, needs={"a": Need(nodes=frozenset({"n0"}))})
    assert places(inputs) == {"a": ("n0:0",), "r0": ("n1:0",)}


def test_a_gpu_that_its_job_cannot_use_goes_to_the_next() -> None:
    """A pinned job holds the only node of job a, so the GPU selected for a goes to the next in rank."""
    held = hold("p", "n0:0", pinned=True)
    columns = [column("p"), column("a"), column("b", share=0.0)]
    inputs = round_of(columns, nodes(2), held, needs={"a": Need(nodes=frozenset({"n0"}))})
    assert places(inputs) == {"p": ("n0:0",), "b": ("n1:0",)}


@pytest.mark.parametrize("resource", ["cpus", "memory_gb"])
def test_cpus_and_memory_are_shared_by_a_node(resource: str) -> None:
    """Needs per GPU are summed over all jobs of a node: two of these jobs do not fit on one node."""
    cluster = [node("n0", 4, **{resource: 10.0}), node("n1", 4, **{resource: 10.0})]
    needs = {job: Need(**{f"{resource}_per_gpu": 6.0}) for job in "abc"}
    where = places(round_of([column("a"), column("b"), column("c"), column("d")], cluster, needs=needs))
    assert len(where) == 3
    assert "d" in where
    assert len({node_of(where[job][0]) for job in where if job != "d"}) == 2


def test_a_gang_spreads_by_its_cpus() -> None:
    """A gang whose CPUs do not fit on one node is split over two."""
    cluster = [node("n0", 4, cpus=8.0), node("n1", 4, cpus=8.0)]
    where = places(round_of([column("a", gpus=4)], cluster, needs={"a": Need(cpus_per_gpu=4.0)}))
    assert len(nodes_of(where["a"])) == 2


def test_a_pair_needs_what_both_need() -> None:
    """Two jobs on the same GPU need the CPUs of both."""
    needs = {job: Need(cpus_per_gpu=3.0) for job in "ab"}
    assert places(round_of([column("a b")], [node("n0", 1, cpus=5.0)], needs=needs)) == {}
    assert places(round_of([column("a b")], [node("n0", 1, cpus=6.0)], needs=needs)) == {"a+b": ("n0:0",)}


def test_gpus_of_named_nodes_are_held_back() -> None:
    """For a gang that waits for a certain node, GPUs are held back on that node only."""
    held = hold("p", "n0:0", pinned=True)
    columns = [
        column("p"),
        column("gang", gpus=2, skipped=5),
        column("b", share=0.5),
        column("c", share=0.25),
    ]
    inputs = round_of(columns, nodes(2, 2), held, needs={"gang": Need(nodes=frozenset({"n0"}))})
    assert plan_round(inputs).reserved == {"v100": columns[1].bundle}
    assert places(inputs) == {"p": ("n0:0",), "b": ("n1:0",), "c": ("n1:1",)}
