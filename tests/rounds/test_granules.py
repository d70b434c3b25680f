"""Granules: a column gets a multiple of its granule from each node, and never waits longer for that than it has to."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.lease import GpuId, node_of, nodes_of
from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import Held, NodeView, RoundInputs, RoundPlan
from scheduler.rounds.plan import plan_round
from tests.support.rounds import Column, Rounds, column, hold, node, nodes, round_of

POWERS = (1, 2, 4, 8)


def planned(inputs: RoundInputs) -> RoundPlan:
    """Plan the round and pass the audit."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return plan


def places(inputs: RoundInputs) -> dict[str, tuple[GpuId, ...]]:
    """Plan the round, and return the GPUs by job."""
    return {job: gpus for bundle, gpus in planned(inputs).placements.items() for job in bundle.jobs}


def on_nodes(gpus: tuple[GpuId, ...]) -> list[int]:
    """Return the numbers of GPUs on each node, the largest first."""
    return sorted(Counter(map(node_of, gpus)).values(), reverse=True)


def singles(*gpus: GpuId, pinned: bool = False) -> tuple[list[Column], dict[str, Held]]:
    """Return the columns and the leases of running jobs, one on each of these GPUs."""
    columns = [column(f"r{i}") for i in range(len(gpus))]
    held = {
        job: lease for i, gpu in enumerate(gpus) for job, lease in hold(f"r{i}", gpu, pinned=pinned).items()
    }
    return columns, held


def test_groups_may_be_on_different_nodes() -> None:
    """Six GPUs in pairs come from nodes with three free GPUs each: two from each."""
    gang = column("gang", gpus=6, granule=2)
    assert on_nodes(places(round_of([gang], nodes(3, 3)))["gang"]) == [2, 2, 2]
    assert on_nodes(places(round_of([gang], [*nodes(2, 4), node("m", 3)]))["gang"]) == [4, 2]


def test_a_gang_that_must_be_together_does_not_spread() -> None:
    """It waits while no node has enough GPUs without pinned jobs; the GPUs go to others meanwhile."""
    columns, held = singles("n0:0", "n1:0", pinned=True)
    gang, other = column("gang", gpus=3, granule=3), column("a", share=0.1)
    plan = planned(round_of([*columns, gang, other], nodes(2, 3), held))
    assert gang.bundle not in plan.placements
    assert other.bundle in plan.placements
    assert plan.skipped == (gang.bundle,)


def test_groups_too_large_for_every_node_are_no_claim() -> None:
    """GPUs of nodes that are smaller than a group count for nothing."""
    inputs = round_of([column("gang", gpus=4, granule=4), column("a", share=0.1)], nodes(4, 2))
    assert set(places(inputs)) == {"a"}


def test_few_jobs_move_to_bring_gpus_together() -> None:
    """The gang gets the node that lacks the fewest GPUs, and the job there moves to another node."""
    columns, held = singles("n0:0", "n0:1", "n1:0", "n2:0", "n2:1")
    where = places(round_of([*columns, column("gang", gpus=4, granule=4)], nodes(3, 4), held))
    assert nodes_of(where["gang"]) == ("n1",)
    assert [job for job, lease in held.items() if where[job] != lease.gpus] == ["r2"]


def test_running_groups_move_whatever_their_rank() -> None:
    """Two running pairs of better rank leave one node each; so one of them moves, and the gang gets a whole node."""
    held = hold("a", "n0:0", "n0:1") | hold("b", "n1:0", "n1:1")
    pairs = [column(job, gpus=2, granule=2, entitled_s=900.0) for job in "ab"]
    where = places(round_of([*pairs, column("gang", gpus=4, granule=4)], nodes(2, 4), held))
    assert [on_nodes(where[job]) for job in ("a", "b", "gang")] == [[2], [2], [4]]


def test_a_running_group_of_better_rank_stays_if_it_has_no_other_place() -> None:
    """A pinned job takes the place to which the better job could move, so the gang of worse rank waits."""
    held = hold("a", "n0:0", "n0:1") | hold("p", "n1:0", "n1:1", "n1:2", pinned=True)
    columns = [column("p", gpus=3), column("a", gpus=2, granule=2, entitled_s=900.0)]
    where = places(round_of([*columns, column("gang", gpus=3, granule=3)], nodes(2, 4), held))
    assert where["a"] == ("n0:0", "n0:1")
    assert "gang" not in where


def test_a_partner_does_not_join_a_job_whose_gpus_are_apart() -> None:
    """The pair needs two GPUs on one node, and the pinned job's are on two."""
    held = hold("a", "n0:0", "n1:0", pinned=True)
    columns = [column("a b", gpus=2, granule=2), column("a", gpus=2, share=0.1)]
    assert set(places(round_of(columns, nodes(2), held))) == {"a"}


def test_gpus_are_held_back_on_nodes_that_are_large_enough() -> None:
    """For a gang that waited, GPUs of large nodes are held back; small nodes go on taking newcomers."""
    columns, held = singles("n0:0", pinned=True)
    gang = column("gang", gpus=4, granule=4, skipped=5)
    cluster = [node("n0", 4), node("small", 1)]
    others = [column("a", share=0.5), column("b", share=0.4)]
    plan = planned(round_of([*columns, gang, *others], cluster, held))
    assert plan.reserved == {"v100": gang.bundle}
    assert sorted(gpus for gpus in plan.placements.values()) == [("n0:0",), ("small:0",)]


def fitting_round(chance: Random) -> RoundInputs:
    """Draw running single-GPU jobs and new gangs, all of which fit by the counts of groups of each size."""
    cluster = [node(f"n{i}", chance.choice([1, 2, 3, 4, 6, 8])) for i in range(chance.randint(1, 6))]
    gpus = [gpu for each in cluster for gpu in each.gpus if chance.random() < 0.4]
    columns, held = singles(*gpus)
    held = {job: Held(lease.bundle, lease.gpus, chance.random() < 0.2) for job, lease in held.items()}
    pinned = Counter(node_of(lease.gpus[0]) for lease in held.values() if lease.pinned)
    left = {size: sum(_whole(each, pinned[each.name], size) for each in cluster) for size in POWERS}
    left[1] -= sum(not lease.pinned for lease in held.values())
    for number in range(chance.randint(1, 8)):
        size = chance.choice(POWERS)
        width = size * chance.randint(1, 3)
        if all(width <= left[smaller] for smaller in POWERS if smaller <= size):
            for smaller in POWERS:
                left[smaller] -= width if smaller <= size else 0
            columns.append(
                column(f"g{number}", gpus=width, granule=size, received_s=chance.choice([0.0, 200.0]))
            )
    chance.shuffle(columns)
    return round_of(columns, cluster, held)


def _whole(each: NodeView, busy: int, size: int) -> int:
    return (len(each.gpus) - busy) // size * size


@settings(max_examples=500)
@given(st.randoms(use_true_random=False))
def test_what_fits_in_groups_is_placed(chance: Random) -> None:
    """If granules divide each other and the groups of each size suffice, every job runs, however scattered the GPUs."""
    inputs = fitting_round(chance)
    assert set(places(inputs)) == set(inputs.jobs)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from([None, 1, 2]))
def test_no_feasible_gang_starves(chance: Random, preemptions_max: int | None) -> None:
    """Among many jobs that are protected for some rounds, each gang that some nodes can hold gets its turns."""
    cluster = [node(f"n{i}", chance.choice([2, 4, 4, 8])) for i in range(chance.randint(2, 4))]
    columns = [column(f"s{i}", share=0.5) for i in range(sum(len(each.gpus) for each in cluster))]
    for number in range(chance.randint(1, 3)):
        size = chance.choice([2, 3, 4])
        width = size * chance.randint(1, 2)
        if sum(_whole(each, 0, size) for each in cluster) >= width:
            columns.append(column(f"g{number}", gpus=width, granule=size, share=0.2))
    rounds = Rounds(columns, cluster, pinned_rounds=chance.randint(0, 3), preemptions_max=preemptions_max)
    ran: set[str] = set()
    for _ in range(80):
        inputs, plan = rounds.play()
        assert check_plan(inputs, plan) == []
        ran.update(job for bundle in plan.placements for job in bundle.jobs)
    assert ran == set(inputs.jobs)
