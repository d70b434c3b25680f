"""Among equal places, a newcomer goes where its data is; nothing else about a plan changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.lease import Bundle, GpuId, nodes_of
from scheduler.rounds.check import check_plan
from scheduler.rounds.diff import diff
from scheduler.rounds.inputs import Held, Need, RoundInputs, RoundPlan
from scheduler.rounds.lookup import Board
from scheduler.rounds.near_data import NODES_MAX, move_to_data
from scheduler.rounds.pins import Pins
from scheduler.rounds.place import place
from scheduler.rounds.plan import plan_round
from tests.support.rounds import column, hold, node, nodes, random_round, round_of

CachedBytes = Mapping[str, Mapping[str, float]]


def placed(inputs: RoundInputs, cached_bytes: CachedBytes) -> dict[str, tuple[GpuId, ...]]:
    """Plan the round with this data on the nodes; return the GPUs of each job."""
    plan = plan_round(replace(inputs, cached_bytes=cached_bytes))
    assert check_plan(inputs, plan) == []
    return {job: gpus for bundle, gpus in plan.placements.items() for job in bundle.jobs}


def nodes_with(inputs: RoundInputs, cached_bytes: CachedBytes) -> dict[str, tuple[str, ...]]:
    """The same, by the names of the nodes."""
    return {job: nodes_of(gpus) for job, gpus in placed(inputs, cached_bytes).items()}


def round_on_equal_nodes(chance: Random) -> RoundInputs:
    """Draw a round with many equal places: like nodes, some of whose GPUs are held, and more or fewer newcomers."""
    size = chance.choice([1, 2, 4])
    cluster = [node(f"n{i}", size, cpus=4.0 * size) for i in range(chance.randint(2, 6))]
    jobs = [f"j{i}" for i in range(chance.randint(1, 10))]
    columns = []
    for job in jobs:
        gpus = chance.choice([1, 1, 1, 2, 4, 2 * size])
        columns.append(
            column(
                job,
                gpus=gpus,
                share=chance.choice([1.0, 0.5, 0.0]),
                received_s=100.0 * chance.randint(0, 5),
                skipped=chance.randint(0, 3) if gpus > 1 else 0,
                granule=chance.choice([1, 1, 1, 2]) if gpus % 2 == 0 else 1,
            )
        )
    held: dict[str, Held] = {}
    for view in cluster:
        if chance.random() < 0.5:
            number = chance.randrange(len(jobs))
            if jobs[number] not in held and columns[number].gpus <= size:
                held |= hold(jobs[number], *view.gpus[: columns[number].gpus])
    some = frozenset(view.name for view in cluster if chance.random() < 0.6)
    needs = {
        job: Need(cpus_per_gpu=chance.choice([1.0, 4.0]), nodes=chance.choice([None, None, some]))
        for job in jobs
        if chance.random() < 0.2
    }
    return round_of(
        columns,
        cluster,
        held,
        needs=needs if chance.random() < 0.5 else {},
        preemptions_max=chance.choice([None, 1]),
        reserve_after=chance.randint(1, 2),
    )


def with_data(chance: Random) -> RoundInputs:
    """Draw a round in which some nodes have data of some jobs."""
    inputs = chance.choice([random_round, round_on_equal_nodes, round_on_equal_nodes])(chance)
    names = [view.name for view in inputs.nodes]
    cached_bytes = {
        job: {name: float(chance.randint(1, 3)) for name in names if chance.random() < 0.5}
        for job in inputs.jobs
        if chance.random() < 0.8
    }
    held_gpus = {gpu for holding in inputs.held.values() for gpu in holding.gpus}
    stopping = {
        gpu for view in inputs.nodes for gpu in view.gpus if gpu not in held_gpus and chance.random() < 0.2
    }
    return replace(
        inputs,
        cached_bytes={job: at for job, at in cached_bytes.items() if at},
        stopping=frozenset(stopping),
    )


def data_at_hand(inputs: RoundInputs, job: str, gpus: tuple[GpuId, ...]) -> float:
    """Return how much data a job has on the nodes of these GPUs, once for each node."""
    return sum(inputs.cached_bytes.get(job, {}).get(name, 0.0) for name in nodes_of(gpus))


def room(inputs: RoundInputs, plan: RoundPlan) -> Counter[tuple[int, int, int]]:
    """Return how many nodes of each type and size have how many GPUs without a job."""
    busy = {gpu for gpus in plan.placements.values() for gpu in gpus}
    return Counter((view.worker_type, len(view.gpus), len(set(view.gpus) - busy)) for view in inputs.nodes)


@settings(max_examples=500)
@given(st.randoms(use_true_random=False).map(with_data))
def test_nothing_but_equal_places_changes(inputs: RoundInputs) -> None:
    """The same columns run, the same jobs stop, incumbents stay, gangs have as many nodes, no node is less full.

    No job has less of its data than without this step, or waits for more GPUs that another job has to leave first.
    """
    plan, plain = plan_round(inputs), plan_round(replace(inputs, cached_bytes={}))
    assert list(plan.placements) == list(plain.placements)
    assert (plan.reserved, plan.skipped) == (plain.reserved, plain.skipped)
    changes, plain_changes = diff(inputs.held, plan), diff(inputs.held, plain)
    assert (changes.ended, changes.rebundled) == (plain_changes.ended, plain_changes.rebundled)
    leaving = inputs.stopping.union(*[holding.gpus for holding in inputs.held.values()])
    for bundle, gpus in plan.placements.items():
        # Where GPUs are held back for a gang, a change of places could take them.
        if bundle.worker_type in plan.reserved or any(job in inputs.held for job in bundle.jobs):
            assert gpus == plain.placements[bundle]
        per_node = Counter(gpu.rpartition(":")[0] for gpu in gpus)
        plain_per_node = Counter(gpu.rpartition(":")[0] for gpu in plain.placements[bundle])
        assert sorted(per_node.values()) == sorted(plain_per_node.values())
        if not any(job in inputs.held for job in bundle.jobs):
            assert len(leaving.intersection(gpus)) <= len(leaving.intersection(plain.placements[bundle]))
        for job in bundle.jobs:
            before = data_at_hand(inputs, job, plain.placements[bundle])
            assert data_at_hand(inputs, job, gpus) >= before
    assert room(inputs, plan) == room(inputs, plain)
    assert check_plan(inputs, plan) == []


def test_a_single_goes_to_the_equal_node_that_has_its_data() -> None:
    """Without data, it goes to the first node."""
    inputs = round_of([column("a")], nodes(3))
    assert nodes_with(inputs, {}) == {"a": ("n0",)}
    assert nodes_with(inputs, {"a": {"n1": 2.0, "n2": 5.0}}) == {"a": ("n2",)}
    assert nodes_with(inputs, {"a": {"gone": 9.0}}) == {"a": ("n0",)}


def test_a_fuller_node_comes_first_whatever_the_data() -> None:
    """Empty nodes are kept for gangs."""
    inputs = round_of([column("a"), column("b")], nodes(2, gpus=2), hold("b", "n0:0"))
    assert nodes_with(inputs, {"a": {"n1": 5.0}})["a"] == ("n0",)


def test_an_incumbent_never_moves() -> None:
    """Its data elsewhere is no reason, and other jobs do not push it aside."""
    inputs = round_of([column("a"), column("b")], nodes(2), hold("a", "n0:0"))
    assert nodes_with(inputs, {"a": {"n1": 5.0}, "b": {"n0": 5.0}}) == {"a": ("n0",), "b": ("n1",)}


def test_newcomers_change_places() -> None:
    """The two jobs have the last two GPUs, and each goes to its data, unless the other one would lose its own."""
    inputs = round_of([column("a", received_s=-1.0), column("b")], nodes(2))
    first = nodes_with(inputs, {})
    wanted = {"a": first["b"], "b": first["a"]}
    assert nodes_with(inputs, {job: {name: 1.0} for job, (name,) in wanted.items()}) == wanted
    (name,) = first["b"]
    assert nodes_with(inputs, {"a": {name: 2.0}}) == wanted
    assert nodes_with(inputs, {"a": {name: 2.0}, "b": {name: 1.0}}) == first


def test_newcomers_of_a_node_move_together() -> None:
    """Three jobs fill three quarters of one node, whichever; they fill that of the two that have the data."""
    inputs = round_of([column("a"), column("b"), column("c")], nodes(3, gpus=4))
    assert set(nodes_with(inputs, {"a": {"n2": 5.0}}).values()) == {("n2",)}
    first = set(nodes_with(inputs, {}).values())
    assert set(nodes_with(inputs, {"a": {"n2": 6.0}, "b": {"n0": 5.0}}).values()) == first == {("n0",)}


def test_a_gang_goes_to_the_equally_tight_node() -> None:
    """A gang on one node moves as a whole; one on two nodes has one of them replaced, and its order stays."""
    inputs = round_of([column("a", gpus=4)], nodes(3, gpus=4))
    assert nodes_with(inputs, {"a": {"n1": 1.0}}) == {"a": ("n1",)}
    inputs = round_of([column("a", gpus=4)], nodes(4, gpus=2))
    assert nodes_with(inputs, {}) == {"a": ("n0", "n1")}
    assert nodes_with(inputs, {"a": {"n3": 1.0}}) == {"a": ("n3", "n1")}
    assert nodes_with(inputs, {"a": {"n2": 2.0, "n3": 2.0}}) == {"a": ("n2", "n3")}


def test_a_gpu_that_is_being_left_is_no_equal_place() -> None:
    """A job that would have to wait until another one has saved starts on the idle GPU."""
    inputs = round_of([column("a"), column("b", share=0.0, backfill=False)], nodes(2), hold("b", "n1:0"))
    assert nodes_with(inputs, {"a": {"n1": 5.0}}) == {"a": ("n0",)}


def test_nodes_must_be_alike_for_what_the_job_needs() -> None:
    """Equal CPUs, memory and sets of allowed nodes; then a job with needs moves, too."""
    needs = {"a": Need(cpus_per_gpu=4.0)}
    alike = [node(name, 2, cpus=16.0, memory_gb=64.0) for name in ("n0", "n1")]
    inputs = round_of([column("a")], alike, needs=needs)
    assert nodes_with(inputs, {"a": {"n1": 1.0}}) == {"a": ("n1",)}
    for other in (node("n1", 2, cpus=32.0, memory_gb=64.0), node("n1", 2, cpus=16.0, memory_gb=32.0)):
        inputs = round_of([column("a")], [alike[0], other], needs=needs)
        assert nodes_with(inputs, {"a": {"n1": 1.0}}) == {"a": ("n0",)}
    picky = {**needs, "b": Need(nodes=frozenset({"n1"}))}
    inputs = round_of([column("a"), column("b", share=0.0, backfill=False)], alike, needs=picky)
    assert nodes_with(inputs, {"a": {"n1": 1.0}}) == {"a": ("n0",)}


def test_a_job_does_not_wait_because_of_the_data_of_another() -> None:
    """On each of two nodes one GPU is idle and one is being left; whoever starts at once still does."""
    incumbents = [column(job, share=0.0, backfill=False) for job in ("x", "y")]
    held = hold("x", "n0:1") | hold("y", "n1:0")
    inputs = round_of([column("a", received_s=-10.0), column("b"), *incumbents], nodes(2, gpus=2), held)
    leaving = {gpu for holding in held.values() for gpu in holding.gpus}
    plain = placed(inputs, {})
    for job in ("a", "b"):
        (here,) = nodes_of(plain[job])
        other = "n1" if here == "n0" else "n0"
        gpus = placed(inputs, {job: {other: 5.0}})
        late = {name: len(leaving.intersection(gpus[name])) for name in ("a", "b")}
        assert late == {name: len(leaving.intersection(plain[name])) for name in ("a", "b")}


def test_nothing_moves_where_gpus_are_held_back() -> None:
    """A change of places could give a job GPUs that are held back for a gang which comes before it."""
    board = Board.of(replace(round_of([column("a")], nodes(2)), cached_bytes={"a": {"n1": 5.0}}))
    for reserved, name in (((0,), "n0"), ((), "n1")):
        layout = place(board, [0], Pins(board, {}))
        move_to_data(board, layout, reserved)
        assert nodes_of(layout.placements[Bundle(("a",), "v100", 1)]) == (name,)


def test_nodes_without_room_are_left_out() -> None:
    """However many of them have more data, an equal node with room is found."""
    cluster = nodes(NODES_MAX + 2, gpus=2)
    held: dict[str, Held] = {}
    columns = [column("a")]
    for number in range(1, NODES_MAX + 1):
        held |= hold(f"b{number}", f"n{number}:0", f"n{number}:1")
        columns.append(column(f"b{number}", gpus=2))
    inputs = round_of(columns, cluster, held)
    full = {f"n{number}": 10.0 + number for number in range(1, NODES_MAX + 1)}
    last = f"n{NODES_MAX + 1}"
    assert nodes_with(inputs, {"a": {**full, last: 1.0}})["a"] == (last,)


def test_only_the_best_nodes_are_tried() -> None:
    """So that data of which many nodes have more costs little."""
    cluster = nodes(NODES_MAX + 2, gpus=2)
    last = f"n{NODES_MAX + 1}"
    held = hold("b", "n0:0") | hold("c", f"{last}:0")
    inputs = round_of([column("a"), column("b"), column("c")], cluster, held)
    # These nodes are emptier than the one that the job gets, so none of them is its equal; the last one is.
    emptier = {f"n{number}": 10.0 + number for number in range(1, NODES_MAX + 1)}
    assert nodes_with(inputs, {"a": {**emptier, last: 1.0}})["a"] == ("n0",)
    del emptier["n1"]
    assert nodes_with(inputs, {"a": {**emptier, last: 1.0}})["a"] == (last,)
