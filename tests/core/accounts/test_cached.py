"""What nodes report of their caches becomes few facts, which go when the node, its cache or the job goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from scheduler.core.accounts.cached import CachedData
from scheduler.core.facts import DataCached, DataNamed, JobsForgotten, NodeJoined
from scheduler.core.messages import (
    CacheChanged,
    Forget,
    HeldLease,
    JobCommand,
    NodeCommand,
    NodeHello,
    NodeSilent,
)
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.round_inputs import at_boundary
from scheduler.core.state import SchedulerState
from scheduler.journal.repair.surviving_facts import surviving_facts
from scheduler.model.cluster import NodeState
from scheduler.model.lease import nodes_of
from scheduler.rounds.plan import plan_round
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
KEY, OTHER, NEWER = "a" * 32, "b" * 32, "c" * 32
REMOVAL: tuple[Literal["drain", "remove"], ...] = ("drain", "remove")
HELD = (CachedData("ada", KEY, 1000.0),)


def test_only_what_is_new_is_a_fact(desk_of: DeskOf) -> None:
    """The same again, or a little more, is no fact; a data set that is gone is."""
    desk = desk_of(node())
    (lease,) = desk.run(job(user="ada"))
    desk.tell(9, CacheChanged(node="n1", cached=HELD, named={lease: {KEY: 2000.0}, "99": {KEY: 1.0}}))
    (entry,) = desk.expect(DataCached, node="n1").data
    assert (entry.user, entry.key, 950 < entry.used_bytes < 1050) == ("ada", KEY, True)
    assert [*desk.expect(DataNamed, job="1").data] == [KEY]
    little_more = (CachedData("ada", KEY, 1001.0),)
    desk.tell(20, CacheChanged(node="n1", cached=little_more, named={lease: {KEY: 2000.0}}))
    desk.tell(30, CacheChanged(node="unknown", cached=HELD))
    assert [*desk.core.state.cached.bytes_by_node(desk.job("1"))] == ["n1"]
    desk.tell(40, CacheChanged(node="n1"))
    assert desk.expect(DataCached).data == ()
    assert desk.core.state.cached.bytes_by_node(desk.job("1")) == {}


def test_a_node_names_data_only_for_its_own_leases(desk_of: DeskOf) -> None:
    """A report about a lease of another node is ignored."""
    desk = desk_of(node(gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(nodes=("n1",)))
    desk.tell(9, CacheChanged(node="n2", named={lease: {KEY: 1.0}}))
    assert desk.core.state.cached.jobs == {}


def test_the_cache_of_a_node_goes_with_the_node(desk_of: DeskOf) -> None:
    """Lost, removed, or back without its cache: nothing is known of it; back after a silence, it reports anew."""
    for end in ("lost", "removed", "back", "uncached"):
        desk = desk_of(node(), node("n2"))
        desk.tell(1, CacheChanged(node="n1", cached=HELD))
        desk.settle()
        if end == "uncached":
            desk.tell(2, NodeHello(spec=node()))
            assert desk.expect(DataCached).data == ()
        elif end == "removed":
            for action in REMOVAL:
                desk.tell(2, NodeCommand(node="n1", action=action))
                desk.settle()
        else:
            desk.tell(2, NodeSilent(node="n1"))
        desk.settle()
        if end == "back":
            desk.tell(3, NodeHello(spec=node(), has_cache=True))
            desk.expect(NodeJoined)
            desk.settle()
            desk.tell(4, CacheChanged(node="n1", cached=HELD))
            desk.expect(DataCached)
        assert ("n1" in desk.core.state.cached.nodes) == (end == "back")
        desk.settle()


def test_a_silent_node_keeps_its_cache_until_it_is_back_or_lost(desk_of: DeskOf) -> None:
    """Late reports of a silent node do not count; when it is back, it has to report what its cache holds by then."""
    for end in ("back", "lost"):
        desk = desk_of(node())
        (lease,) = desk.run(job(user="ada", steps=1e9))
        desk.tell(desk.now_s, CacheChanged(node="n1", cached=HELD, named={lease: {KEY: 2000.0}}))
        desk.settle()
        desk.tell(desk.now_s, NodeSilent(node="n1"))
        desk.settle()
        assert desk.core.state.nodes["n1"].state is NodeState.SILENT
        desk.tell(desk.now_s, CacheChanged(node="n1", named={lease: {OTHER: 1.0}}))
        assert [*desk.core.state.cached.jobs["1"]] == [KEY]
        assert "n1" in desk.core.state.cached.nodes
        if end == "back":
            desk.tell(
                desk.now_s,
                NodeHello(spec=node(), held=(HeldLease(lease=lease, steps=0.0, ran_s=1.0),), has_cache=True),
            )
        else:
            desk.until(desk.now_s + 2000.0)
            assert desk.core.state.nodes["n1"].state is NodeState.LOST
        assert "n1" not in desk.core.state.cached.nodes
        desk.settle()


def test_the_nodes_of_a_gang_may_name_different_data(desk_of: DeskOf) -> None:
    """The data of the job is all of it, and reports of the same are no facts."""
    desk = desk_of(node(gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(user="ada", gpus=2))
    for name, key in (("n1", KEY), ("n2", OTHER)):
        desk.tell(desk.now_s, CacheChanged(node=name, named={lease: {key: 1000.0}}))
        assert key in desk.expect(DataNamed).data
    before = desk.core.state.cached.jobs["1"]
    assert sorted(before) == [KEY, OTHER]
    for name, key in (("n1", KEY), ("n2", OTHER)):
        desk.tell(desk.now_s, CacheChanged(node=name, named={lease: {key: 1000.0}}))
    assert desk.core.state.cached.jobs["1"] == before
    # Their script has a new version of the data.
    for name in ("n1", "n2"):
        desk.tell(desk.now_s, CacheChanged(node=name, named={lease: {NEWER: 1000.0}}))
        assert desk.expect(DataNamed).node == name
    assert [*desk.core.state.cached.jobs["1"]] == [NEWER]
    again = SchedulerState.restore(desk.core.state.snapshot())
    assert again.cached.rows() == desk.core.state.cached.rows()


def test_an_agent_that_links_again_keeps_its_cache(desk_of: DeskOf) -> None:
    """A new hello of a node with a cache changes nothing."""
    desk = desk_of(node())
    desk.tell(1, CacheChanged(node="n1", cached=HELD))
    desk.settle()
    desk.tell(2, NodeHello(spec=node(), has_cache=True))
    assert "n1" in desk.core.state.cached.nodes
    desk.settle()


def test_data_is_forgotten_with_its_jobs(desk_of: DeskOf) -> None:
    """The data of a job goes with the job, and that of a type with its last job."""
    desk = desk_of(node(), node("n2"))
    (lease,) = desk.run(job(job_type="new", user="ada", nodes=("n1",)))
    desk.tell(desk.now_s, CacheChanged(node="n1", named={lease: {KEY: 1.0}}))
    desk.settle()
    (second,) = desk.submit(job(job_type="new", user="ada", nodes=("n2",)))
    state = desk.core.state
    # An allocation names its jobs until there is another one.
    desk.submit(job(steps=1e9))
    desk.until(desk.now_s + 800)
    for name, where, job_types, pools in (("1", "n1", (), 1), (second, "n2", ("new",), 0)):
        held = desk.job(name).lease or ""
        desk.tell(desk.now_s, JobCommand(job=name, action="cancel"))
        desk.settle()
        desk.report(where, exits=(exited(held),))
        desk.until(desk.now_s + 800)
        desk.tell(desk.now_s, Forget(jobs=(name,)))
        assert desk.expect(JobsForgotten).job_types == job_types
        assert (state.cached.jobs, len(state.cached.pools)) == ({}, pools)


def test_a_job_starts_where_its_data_is(desk_of: DeskOf) -> None:
    """A job of the same user and type goes to the node that holds the data, another one to the first node."""
    for user, where in (("ada", "n2"), ("bob", "n1")):
        desk = desk_of(node(gpus=1), node("n2", gpus=1))
        (lease,) = desk.run(job(user="ada", nodes=("n2",)))
        desk.tell(desk.now_s, CacheChanged(node="n2", cached=HELD, named={lease: {KEY: 2000.0}}))
        desk.settle()
        desk.report("n2", exits=(exited(lease, "finished", steps=1000.0),))
        desk.settle()
        (following,) = desk.run(job(user=user))
        assert desk.holding(following).lease.gpus == (f"{where}:0",)


def test_a_snapshot_has_the_book(desk_of: DeskOf) -> None:
    """Restored from a snapshot, the state has the same."""
    desk = desk_of(node())
    (lease,) = desk.run(job(user="ada"))
    desk.tell(9, CacheChanged(node="n1", cached=HELD, named={lease: {KEY: 2.0, OTHER: 0.0}}))
    desk.settle()
    state = SchedulerState.restore(desk.core.state.snapshot())
    assert state.cached.rows() == desk.core.state.cached.rows()
    assert state.cached.rows() != SchedulerState().cached.rows()


def test_no_job_waits_for_one_that_still_saves_because_of_the_data_of_another(desk_of: DeskOf) -> None:
    """Of two free GPUs one is being left by a job that was cancelled: it is no equal place."""
    for cached in ((), (CachedData("eve", KEY, 1000.0),)):
        desk = desk_of(*[node(f"n{number}", gpus=1) for number in range(4)])
        leases = desk.run(*[job(user="ann", steps=1e9) for _ in range(4)])
        state = desk.core.state
        desk.until(state.round.ends_s - 3)
        stopping, idle = (desk.holding(lease) for lease in leases[2:])
        for holding in (stopping, idle):
            desk.tell(desk.now_s, JobCommand(job=holding.lease.job, action="cancel"))
            desk.settle()
        (idle_node,) = nodes_of(idle.lease.gpus)
        desk.report(idle_node, exits=(exited(idle.lease.id),))
        desk.settle()
        desk.tell(desk.now_s, CacheChanged(node=idle_node, cached=cached))
        desk.settle()
        bob, eve = desk.submit(job(user="bob", steps=1e9), job(user="eve", job_type="lm", steps=1e9))
        state.cached.enter_job(desk.job(eve), {KEY: 1000.0})
        plan = plan_round(at_boundary(state, Kinds(), desk.now_s, state.round.ends_s))
        places = {bundle.jobs[0]: gpus for bundle, gpus in plan.placements.items()}
        assert (places[bob], places[eve]) == (idle.lease.gpus, stopping.lease.gpus)


def test_facts_about_what_was_lost_are_left_out() -> None:
    """After damage, a job or node that the state lacks has no data."""
    state = SchedulerState()
    assert surviving_facts(state, 0.0, DataNamed(job="1", data={KEY: 1.0})) == ()
    assert surviving_facts(state, 0.0, DataCached(node="n1", data=HELD)) == ()
    desk = Desk(node(), node("n2"))
    desk.tell(1, NodeSilent(node="n1"))
    assert desk.core.state.nodes["n1"].state is NodeState.LOST
    assert surviving_facts(desk.core.state, 0.0, DataCached(node="n1", data=HELD)) == ()
    fact = DataCached(node="n2", data=HELD)
    assert surviving_facts(desk.core.state, 0.0, fact) == (fact,)
