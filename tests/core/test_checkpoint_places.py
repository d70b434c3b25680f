"""Where the last checkpoint of a job lies, and which nodes can therefore run the job."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from scheduler.core.apply import apply
from scheduler.core.facts import CheckpointSaved, LeaseClosed, LeasesStarted
from scheduler.core.messages import NodeCommand, NodeHello, Progress
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.problem import build
from scheduler.core.state import SchedulerState
from scheduler.explain import Reason, explain
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobState
from scheduler.model.lease import nodes_of
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from tests.support.core_world import Stage
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def saved(desk: Desk, lease: str, name: str, steps: float = 50.0) -> None:
    """Report a checkpoint of the job from a node."""
    desk.report(name, progress=(Progress(lease, steps, steps, steps / 10.0),))


def where(desk: Desk, name: str) -> set[str]:
    """Return the nodes on which a job has GPUs."""
    return set(nodes_of(desk.holding(desk.job(name).lease or "").lease.gpus))


def types_of(desk: Desk, name: str) -> set[str]:
    """Return the worker types on which the problem has a column for a job."""
    problem, _ = build(desk.core.state, Kinds(), desk.now_s)
    row = problem.jobs.ids.index(name)
    columns = problem.columns
    kinds = columns.worker_type[(columns.first == row) | (columns.second == row)]
    return {problem.worker_types[kind] for kind in kinds.tolist()}


# -------------------------------------------------------------------------------------- what is remembered


def test_a_store_is_recorded_at_the_first_checkpoint_only(desk_of: DeskOf) -> None:
    """The store is recorded once, however often the job saves there."""
    desk = desk_of(node("n1", 1, storage=""))
    (lease,) = desk.run(job())
    desk.report(progress=(Progress(lease, 50.0, 0.0, 5.0),))
    desk.settle()
    assert desk.job("1").checkpoint_at == ""
    saved(desk, lease, "n1")
    assert desk.expect(CheckpointSaved, job="1").place == "node:n1"
    desk.settle()
    saved(desk, lease, "n1", 60.0)
    assert not [fact for fact in desk.facts if isinstance(fact, CheckpointSaved)]
    desk.settle()


def test_a_checkpoint_saved_as_a_lease_ends_counts(desk_of: DeskOf) -> None:
    """Most jobs save when they are stopped, and report it with their exit."""
    desk = desk_of(node("n1", 1, storage="nfs"))
    (lease,) = desk.run(job())
    desk.report(exits=(exited(lease),))
    desk.expect(CheckpointSaved, job="1", place="nfs")
    desk.expect(LeaseClosed)
    desk.settle()
    assert desk.job("1").checkpoint_at == "nfs"


def test_a_checkpoint_that_was_only_read_keeps_its_place(desk_of: DeskOf) -> None:
    """A checkpoint that is reported again is not a new one."""
    desk = desk_of(node("n1", 1, storage=""))
    (lease,) = desk.run(job())
    saved(desk, lease, "n1")
    desk.settle()
    apply(desk.core.state, desk.now_s, CheckpointSaved(job="1", place="nfs"))
    saved(desk, lease, "n1")
    desk.settle()
    assert desk.job("1").checkpoint_at == "nfs"


def test_in_a_gang_the_first_node_saves(desk_of: DeskOf) -> None:
    """Rank 0 writes the checkpoint, so a checkpoint counts only if the node of rank 0 reports it."""
    desk = desk_of(node("n1", 1, storage=""), node("n2", 1, storage=""))
    (lease,) = desk.run(job(gpus=2))
    first, second = nodes_of(desk.holding(lease).lease.gpus)
    saved(desk, lease, second, 40.0)
    desk.settle()
    assert desk.job("1").checkpoint_at == ""
    saved(desk, lease, first, 50.0)
    desk.settle()
    assert desk.job("1").checkpoint_at == f"node:{first}"


def test_the_place_survives_a_snapshot(desk_of: DeskOf) -> None:
    """A restored scheduler has the store, and the jobs that are confined to it."""
    desk = desk_of(node("n1", 1, storage=""), node("n2", 1, storage=""))
    (lease,) = desk.run(job(nodes=("n1",)))
    saved(desk, lease, "n1")
    desk.settle()
    restored = SchedulerState.restore(desk.core.state.snapshot())
    assert restored.confined_to(restored.jobs["1"]) == ("node:n1",)
    assert (restored.may_have_saved, restored.stores) == (
        desk.core.state.may_have_saved,
        desk.core.state.stores,
    )


@pytest.mark.parametrize("storage", ["a b", "a:b", "a/b", "x" * 300])
def test_the_name_of_a_store_is_a_plain_name(storage: str) -> None:
    """A store's name that could be read as the disk of a node is refused."""
    with pytest.raises(InvalidSpec, match="storage: is"):
        node(storage=storage).checked()


# ------------------------------------------------------------------------------------ where it may continue


def stopped(desk_of: DeskOf, *storages: str) -> Desk:
    """Return a desk with nodes n1 (v100), n2 (v100), n3 (k80); job 1 saved on n1, which is now draining."""
    kinds = ("v100", "v100", "k80")
    nodes = (
        node(f"n{i}", 1, kind, storage=at) for i, kind, at in zip((1, 2, 3), kinds, storages, strict=True)
    )
    desk = desk_of(*nodes)
    (lease,) = desk.run(job(steps=1e6))
    assert where(desk, "1") == {"n1"}
    saved(desk, lease, "n1")
    desk.settle()
    desk.tell(desk.now_s, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.until(359.0)
    desk.report("n1", exits=(exited(lease, steps=60.0),))
    desk.settle()
    desk.until(380.0)
    return desk


def test_a_job_continues_on_a_node_that_sees_its_checkpoint(desk_of: DeskOf) -> None:
    """n2 sees the same store as n1, n3 does not."""
    desk = stopped(desk_of, "nfs", "nfs", "")
    assert types_of(desk, "1") == {"v100"}
    assert where(desk, "1") == {"n2"}


def test_a_job_continues_on_a_slow_node_if_only_that_sees_its_checkpoint(desk_of: DeskOf) -> None:
    """The faster node stays idle, because the job's checkpoint cannot be read there."""
    desk = stopped(desk_of, "nfs", "other", "nfs")
    assert types_of(desk, "1") == {"k80"}
    assert where(desk, "1") == {"n3"}


def test_a_job_waits_for_the_node_with_its_checkpoint(desk_of: DeskOf, wording: Wording) -> None:
    """No other node sees the disk of n1: the job has no column anywhere, and its explanation has the reason."""
    desk = stopped(desk_of, "", "", "")
    assert desk.job("1").state == JobState.PREEMPTED
    assert desk.job("1").lease is None
    assert build(desk.core.state, Kinds(), desk.now_s)[0].jobs.ids == ()
    answer = explain(desk.core.state, "1")
    assert answer.reason == Reason.CHECKPOINT_ELSEWHERE
    assert "node n1" in answer.text
    wording(answer.text)
    assert {change.what for change in answer.would_change} >= {"resume_node", "storage"}
    desk.tell(desk.now_s, NodeCommand(node="n1", action="resume"))
    desk.settle()
    desk.until(desk.now_s + 30.0)
    assert where(desk, "1") == {"n1"}


def test_a_job_waits_while_others_hold_the_only_node(desk_of: DeskOf, wording: Wording) -> None:
    """Another v100 is free, but another job holds the one with the checkpoint, as the explanation reports."""
    desk = stopped(desk_of, "", "", "")
    desk.submit(job(nodes=("n1",), steps=1e6, preemptible=False))
    desk.tell(desk.now_s, NodeCommand(node="n1", action="resume"))
    desk.settle()
    state = desk.core.state
    state.jobs["1"].spec = job(steps=1e6, earliest_start_s=desk.now_s + 40.0)
    state.reindex()
    desk.until(desk.now_s + 30.0)
    state.jobs["1"].spec = job(steps=1e6)
    assert where(desk, "2") == {"n1"}
    desk.until(desk.now_s + 400.0)
    answer = explain(state, "1")
    assert answer.reason == Reason.CHECKPOINT_ELSEWHERE
    assert "on n1," in answer.text
    assert "0 of 1 v100" in answer.text
    wording(answer.text)


@pytest.mark.parametrize(("store", "helps"), [("other", False), ("nfs", True)])
def test_another_worker_type_is_advised_only_if_it_sees_the_checkpoint(
    desk_of: DeskOf, store: str, helps: bool
) -> None:
    """Idle k80s help only if one of them sees the store of n1; otherwise the job would wait just as long."""
    desk = stopped(desk_of, "nfs", "other", "other")
    state = desk.core.state
    state.jobs["1"].spec = job(steps=1e6, worker_types=("v100",))
    desk.tell(desk.now_s, NodeHello(spec=node("n4", 1, "k80", storage=store)))
    desk.settle()
    answer = explain(state, "1")
    changes = {change.what: change.text for change in answer.would_change}
    assert answer.reason == Reason.CHECKPOINT_ELSEWHERE
    assert ("k80" in changes.get("allow_worker_type", "")) is helps
    assert any("`checkpoint_dir`" in text for text in changes.values())


def test_a_running_job_is_kept_where_it_will_save(desk_of: DeskOf) -> None:
    """A job will save when it is stopped, so its next lease is on a node that reaches the present node's store."""
    desk = desk_of(*(node(name, 1, storage="") for name in ("n1", "n2")))
    (lease,) = desk.run(job(steps=1e6))
    assert (where(desk, "1"), desk.job("1").checkpoint_at) == ({"n1"}, "")
    desk.tell(desk.now_s, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.until(359.0)
    assert desk.job("1").lease is None
    assert explain(desk.core.state, "1").reason == Reason.STOPPING
    desk.report("n1", exits=(exited(lease, "failed", 0.0),))
    desk.settle()
    desk.until(400.0)
    assert desk.job("1").state == JobState.FAILED


def test_a_run_without_a_checkpoint_confines_no_job(desk_of: DeskOf) -> None:
    """The node failed before the job's first checkpoint, so the job starts from the beginning, on any node."""
    desk = desk_of(*(node(name, 1, storage="") for name in ("n1", "n2")))
    (lease,) = desk.run(job(steps=1e6))
    desk.report("n1", exits=(exited(lease, "node_failed", 0.0),), broken_gpus=(0,))
    desk.settle()
    desk.until(30.0)
    assert where(desk, "1") == {"n2"}


def test_with_one_store_for_all_nodes_no_job_is_confined(desk_of: DeskOf) -> None:
    """With one store for all nodes a round is planned as if there were no stores."""
    desk = stopped(desk_of, "nfs", "nfs", "nfs")
    state = desk.core.state
    assert state.confined_to(state.jobs["1"]) == ()
    assert types_of(desk, "1") == {"v100", "k80"}
    desk.tell(desk.now_s, NodeHello(spec=node("n4", 1, storage="")))
    desk.settle()
    assert state.confined_to(state.jobs["1"]) == ("nfs",)


def test_a_job_without_a_recorded_place_runs_anywhere(desk_of: DeskOf) -> None:
    """An older journal records no stores; its jobs may run on any node, as before."""
    desk = desk_of(node("n1", 1, storage=""), node("n2", 1, storage=""))
    (lease,) = desk.run(job(steps=1e6))
    state = desk.core.state
    closed = LeaseClosed(exit=exited(lease, steps=60.0))
    apply(state, desk.now_s, closed)
    assert (state.jobs["1"].steps_saved, state.jobs["1"].checkpoint_at) == (60.0, "")
    assert state.confined_to(state.jobs["1"]) == ()


def test_packed_jobs_must_see_the_same_place(desk_of: DeskOf) -> None:
    """Two jobs with checkpoints on different disks are not packed."""
    desk = desk_of(node("n1", 1, storage=""), node("n2", 1, storage=""), policy="las+packing")
    desk.submit(job(steps=1e6, nodes=("n1",)), job(steps=1e6, job_type="lm", nodes=("n2",)))
    _, pairs = build(desk.core.state, Kinds(), desk.now_s)
    assert pairs is not None
    assert len(pairs.first) > 0
    desk.until(8.0)
    leases = [desk.job(name).lease or "" for name in ("1", "2")]
    for name, lease in zip(("n1", "n2"), leases, strict=True):
        desk.report(name, started=(lease,))
        desk.settle()
    for name, lease in zip(("n1", "n2"), leases, strict=True):
        saved(desk, lease, name)
        desk.settle()
    _, pairs = build(desk.core.state, Kinds(), desk.now_s)
    assert pairs is not None
    both = {(a, b) for a, b in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True) if a != b}
    assert both == set()


# ----------------------------------------------------------------- gangs over nodes with disks of their own


def over_disks(desk_of: DeskOf, *sizes: int, **spec: int) -> tuple[Desk, str]:
    """Return a desk with a gang that runs on nodes of these sizes, each with its own disk."""
    desk = desk_of(*(node(f"n{i}", size, storage="") for i, size in enumerate(sizes, 1)))
    (lease,) = desk.run(job(steps=1e6, **spec))
    return desk, lease


def test_a_gang_keeps_its_gpus_though_no_node_is_as_wide(desk_of: DeskOf) -> None:
    """Before and after its first checkpoint, the gang keeps its GPUs over the boundary."""
    desk, lease = over_disks(desk_of, 1, 1, gpus=2)
    desk.until(400.0)
    assert desk.job("1").lease == lease
    saved(desk, lease, "n1")
    desk.settle()
    desk.until(800.0)
    assert desk.job("1").lease == lease


def test_a_gang_continues_on_the_nodes_of_its_ranks(desk_of: DeskOf, wording: Wording) -> None:
    """The checkpoint is not on the idle third node: the job waits for the draining one, as its explanation reports."""
    desk, lease = over_disks(desk_of, 1, 1, gpus=2)
    desk.tell(desk.now_s, NodeHello(spec=node("n3", 1, storage="")))
    desk.settle()
    saved(desk, lease, "n1")
    desk.settle()
    desk.tell(desk.now_s, NodeCommand(node="n2", action="drain"))
    desk.settle()
    desk.until(361.0)
    for name in ("n1", "n2"):
        desk.report(name, exits=(exited(lease, steps=60.0),))
        desk.settle()
    desk.until(800.0)
    assert desk.job("1").lease is None
    answer = explain(desk.core.state, "1")
    assert answer.reason == Reason.CHECKPOINT_ELSEWHERE
    assert {"n1", "n2"} <= set(re.findall(r"\bn\d\b", answer.text))
    assert "n2 is draining" in answer.text
    wording(answer.text)
    desk.tell(desk.now_s, NodeCommand(node="n2", action="resume"))
    desk.settle()
    desk.until(desk.now_s + 30.0)
    assert where(desk, "1") == {"n1", "n2"}


def test_rank_zero_starts_where_it_saved(desk_of: DeskOf) -> None:
    """Whatever the order of the nodes in the state, rank 0 starts where it saved, and the others follow in order."""
    desk = desk_of(*(node(name, 1, storage="") for name in ("n1", "n2", "n3")))
    desk.submit(job(gpus=3))
    entry = desk.job("1")
    entry.checkpoint_at, entry.checkpoint_beside = "node:n3", ("node:n1", "node:n2")
    desk.until(8.0)
    assert nodes_of(desk.holding(entry.lease or "").lease.gpus) == ("n3", "n1", "n2")


def test_an_elastic_gang_continues_where_rank_zero_was(desk_of: DeskOf) -> None:
    """A narrower gang would fit on the other node, which lacks the checkpoint, so it is confined to rank 0's node."""
    desk, lease = over_disks(desk_of, 2, 2, gpus=4, gpus_min=2)
    first = nodes_of(desk.holding(lease).lease.gpus)[0]
    saved(desk, lease, first)
    desk.settle()
    assert desk.core.state.confined_to(desk.job("1")) == (f"node:{first}",)


@pytest.mark.parametrize("seed", range(4))
def test_every_attempt_starts_where_it_can_read_its_checkpoint(seed: int) -> None:
    """Nodes drain, fail and come back, jobs take turns: every start can read what the job saved last."""
    luck = Random(seed)
    disks = {"n1": "", "n2": "", "n3": "nfs", "n4": "nfs"}
    stage = Stage(
        [node(name, 2, storage=storage) for name, storage in disks.items()],
        Settings(policy="las+packing", restart_cost_s=10.0),
    )
    for i in range(10):
        truth = JobTruth(job_type="cnn", gpus=1, steps_total=15_000, save_every_s=100.0, checkpoint_s=5)
        stage.world.submit(i * 60.0, [job(name=f"j{i}", steps=15_000.0)], truth)
    for number in range(12):
        name, at_s = luck.choice(sorted(disks)), 200.0 + 300.0 * number
        if luck.random() < 0.3:
            stage.world.at(at_s, lambda now_s, name=name: stage.machines.crash(now_s, name))
            stage.world.at(at_s + 250.0, lambda now_s, name=name: stage.machines.repair(now_s, name))
        else:
            stage.world.at(at_s, NodeCommand(node=name, action="drain"))
            stage.world.at(at_s + 280.0, NodeCommand(node=name, action="resume"))
    stage.until(60_000.0)
    assert {entry.state for entry in stage.state.jobs.values()} == {JobState.COMPLETED}
    state, starts, elsewhere = SchedulerState(), 0, 0
    for now_s, facts in stage.journal.records:
        for fact in facts:
            apply(state, now_s, fact)
            for name in fact.leases if isinstance(fact, LeasesStarted) else ():
                lease = state.leases[name].lease
                store = state.nodes[nodes_of(lease.gpus)[0]].spec.store
                assert state.jobs[lease.job].checkpoint_at in ("", store), f"at {now_s:g} s, lease {name}"
                starts += 1
                elsewhere += store != "nfs"
    assert starts > 15
    assert elsewhere > 3
