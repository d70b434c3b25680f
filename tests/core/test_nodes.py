"""Nodes that join, fall silent and come back: every fact and effect, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import RefuseNode, SendLeases
from scheduler.core.facts import (
    CheckpointSaved,
    GpusWithheld,
    LeaseClosed,
    LeaseRecalled,
    LeasesResumed,
    LeasesStarted,
    NodeJoined,
    NodeMoved,
    ProgressMade,
)
from scheduler.core.messages import (
    HeldLease,
    JobCommand,
    NodeCommand,
    NodeHello,
    NodeSilent,
    Progress,
    Woke,
)
from scheduler.model.cluster import Node, NodeState
from scheduler.model.jobs import JobState
from scheduler.model.lease import Phase
from tests.support.desk import Desk, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def hello(name: str = "n1", *held: str, gpus: int = 2, ran_s: float = 5.0, **more: Any) -> NodeHello:
    """Return the hello of a node that still holds these leases."""
    return NodeHello(
        spec=node(name, gpus, **more),
        held=tuple(HeldLease(lease=lease, steps=10.0, ran_s=ran_s) for lease in held),
    )


# --------------------------------------------------------------------------------------------------- hellos


def test_a_node_joins(desk_of: DeskOf) -> None:
    """The node receives its set of leases, and the pulse looks for work for it."""
    desk = desk_of()
    desk.tell(3, hello())
    desk.expect(NodeJoined, spec=node())
    desk.expect(SendLeases, node="n1", leases=(), generation=0)
    desk.wakes(tick=3)
    assert desk.core.state.nodes["n1"].state == NodeState.UP


def test_a_node_with_an_impossible_description_is_refused(desk_of: DeskOf) -> None:
    """The refusal names the bad field, and no node joins."""
    desk = desk_of()
    desk.tell(0, hello(gpus=0))
    assert desk.expect(RefuseNode, node="n1", code="invalid").error.startswith("gpus: ")
    assert desk.core.state.nodes == {}


def test_a_second_hello_changes_nothing(desk_of: DeskOf) -> None:
    """The link came back before the core noticed the loss: the leases stay in force and are sent again."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, hello("n1", lease))
    assert [lease_sent.id for lease_sent in desk.expect(SendLeases).leases] == [lease]
    desk.wakes(fill=9)
    assert desk.holding(lease).phase == Phase.RUNNING


def test_a_hello_without_a_running_lease_is_a_node_failure(desk_of: DeskOf) -> None:
    """The processes died in between: the job falls back to its checkpoint, and the failure is not its own."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(progress=(Progress(lease, 90.0, 60.0, 9.0),))
    desk.expect(CheckpointSaved)
    desk.expect(ProgressMade)
    desk.tell(20, hello())
    end = desk.expect(LeaseClosed, lapsed=False).exit
    assert (end.outcome, end.steps, end.saved, end.ran_s) == ("node_failed", 60.0, 60.0, 12.0)
    desk.expect(SendLeases)
    # The job pauses for a second.
    desk.wakes(fill=20, review=21)
    entry = desk.job("1")
    assert (entry.state, entry.steps_done) == (JobState.PREEMPTED, 60)
    assert (entry.failures, entry.node_failures) == (0, 1)


def test_a_hello_that_holds_a_lease_starts_it(desk_of: DeskOf) -> None:
    """The report of the start was lost with the link: the time limit counts from the hello."""
    desk = desk_of(node())
    desk.submit(job(time_limit_s=100.0))
    desk.until(8)
    lease = desk.job("1").lease or ""
    desk.tell(20, hello("n1", lease))
    desk.expect(LeasesStarted, leases=(lease,))
    desk.settle()
    assert desk.holding(lease).phase == Phase.RUNNING
    desk.until(121)
    assert desk.job("1").state == JobState.FAILED


def test_a_sent_lease_the_node_does_not_hold_is_sent_again(desk_of: DeskOf) -> None:
    """The lease never reached the node, so nothing was lost."""
    desk = desk_of(node())
    desk.submit(job())
    desk.until(8)
    desk.tell(9, hello())
    assert [sent.id for sent in desk.expect(SendLeases).leases] == [desk.job("1").lease]
    desk.wakes(fill=9)


# -------------------------------------------------------------------------------------------------- silence


def test_silence_ends_leases_but_frees_nothing(desk_of: DeskOf, wording: Wording) -> None:
    """P5, P8: unreachable is not dead; the node's GPUs stay taken until its leases have certainly lapsed."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    ends_s = desk.core.state.round.ends_s
    desk.tell(10, NodeSilent(node="n1"))
    desk.expect(NodeMoved, node="n1", state=NodeState.SILENT)
    wording(desk.expect(LeaseRecalled, lease=lease).why)
    desk.wakes(lapse=ends_s + 30, fill=10)
    desk.tell(11, NodeSilent(node="n1"))
    desk.all_claimed()
    desk.until(ends_s + 29)
    assert desk.core.state.holders == {"n1:0": (lease,)}
    desk.tell(ends_s + 30, Woke(what="lapse"))
    desk.expect(LeaseClosed, lapsed=True)
    desk.expect(NodeMoved, node="n1", state=NodeState.LOST)
    desk.settle()
    assert desk.core.state.holders == {}


def test_leases_of_a_node_that_is_back_in_time_continue(desk_of: DeskOf) -> None:
    """P6: the leases are resumed, not restarted."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(10, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(100, hello("n1", lease))
    desk.expect(NodeJoined)
    desk.expect(LeasesResumed, leases=(lease,))
    assert [sent.id for sent in desk.expect(SendLeases).leases] == [lease]
    desk.wakes(fill=100)
    assert (desk.job("1").lease, desk.job("1").attempt, desk.job("1").leaving) == (lease, 1, None)


@pytest.mark.parametrize("action", ["cancel", "hold", "requeue"])
def test_a_job_stopped_during_the_silence_is_not_resumed(desk_of: DeskOf, action: Any) -> None:
    """A command that came while the node was unreachable still holds when the node is back."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(10, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(11, JobCommand(job="1", action=action))
    desk.settle()
    desk.tell(12, hello("n1", lease))
    desk.expect(NodeJoined)
    assert desk.expect(SendLeases).leases == ()
    desk.wakes(fill=12)
    assert (desk.job("1").lease, desk.job("1").leaving) == (None, lease)


def test_a_job_promised_other_gpus_during_the_silence_is_not_resumed(desk_of: DeskOf) -> None:
    """The job keeps its new lease, which waits for the old one to end."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(nodes=("n1", "n2")))
    name = desk.holding(lease).lease.gpus[0].rpartition(":")[0]
    desk.tell(10, NodeSilent(node=name))
    desk.until(desk.core.state.round.ends_s + 1)
    waiting = desk.job("1").lease or ""
    assert desk.holding(waiting).phase == Phase.WAITING
    desk.tell(desk.now_s, hello(name, lease, gpus=1))
    desk.settle()
    assert (desk.job("1").lease, desk.job("1").leaving) == (waiting, lease)


# --------------------------------------------------------------------------------------------- descriptions


def test_a_node_that_changes_its_kind_under_a_lease_is_refused(desk_of: DeskOf) -> None:
    """Another worker type, or fewer GPUs than its leases hold: the node has to wait until they have ended."""
    for changed in ({"worker_type": "k80"}, {"gpus": 1}):
        desk = desk_of(node())
        lease, _ = desk.run(job(), job())
        desk.tell(9, hello("n1", lease, **changed))
        desk.expect(RefuseNode, node="n1", code="refused")
        assert desk.core.state.nodes["n1"].spec == node()
        desk.settle()


def test_the_cost_of_joining_does_not_depend_on_the_cluster(
    desk_of: DeskOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a node joins or drains, only that node's GPUs are listed again."""
    desk = desk_of(*(node(f"n{i}") for i in range(50)))
    listed: list[str] = []
    every_gpu = Node.every_gpu.fget  # type: ignore[attr-defined]
    spy = property(lambda node: listed.append(node.spec.name) or every_gpu(node))
    monkeypatch.setattr(Node, "every_gpu", spy)
    desk.core.handle(1.0, hello("new"))
    desk.core.handle(2.0, NodeCommand(node="n7", action="drain"))
    assert set(listed) <= {"new", "n7"}
    monkeypatch.undo()
    assert desk.core.state.size_of_type == {"v100": 102}
    assert desk.core.state.gpus_of["new"] == ("new:0", "new:1")


def test_counts_of_gpus_follow_their_nodes(desk_of: DeskOf) -> None:
    """GPUs of nodes that are removed, or come back with other GPUs, are in no count any more."""
    desk = desk_of(node("n1"), node("n2", 4, "k80"))
    desk.tell(1, hello("n2", gpus=3))
    desk.settle()
    assert desk.core.state.size_of_type == {"v100": 5}
    desk.tell(2, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.tell(3, NodeCommand(node="n1", action="remove"))
    desk.settle()
    assert desk.core.state.size_of_type == {"v100": 3}
    assert set(desk.core.state.gpus_of) == {"n2"}


def test_a_withheld_gpu_comes_back_by_itself(desk_of: DeskOf) -> None:
    """Each report lists the withheld GPUs: nothing is placed on them until a report lists none."""
    desk = desk_of(node(gpus=1))
    for gpus in ((0,), ()):
        desk.report(withheld_gpus=(*gpus, 7))
        desk.expect(GpusWithheld, gpus=gpus)
        desk.wakes(tick=0)
        assert desk.core.state.nodes["n1"].gpu_ids == (() if gpus else ("n1:0",))
        desk.report(withheld_gpus=gpus)
        desk.report()
        desk.all_claimed()


def test_a_resumed_node_has_its_withheld_gpus(desk_of: DeskOf) -> None:
    """An operator's `resume` returns them to use; the fact is marked as mended."""
    desk = desk_of(node(gpus=1))
    desk.report(withheld_gpus=(0,))
    desk.settle()
    desk.tell(1.0, NodeCommand(node="n1", action="resume", user="ann"))
    assert desk.expect(NodeMoved).mended
    assert desk.core.state.nodes["n1"].gpu_ids == ("n1:0",)
    desk.settle()
