"""Commands about nodes: drain, resume and remove; every fact and effect, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.apply_leases import why_ended
from scheduler.core.effects import Reply, SendLeases
from scheduler.core.facts import (
    NodeJoined,
    NodeMoved,
    NodeRemoved,
)
from scheduler.core.messages import (
    NodeCommand,
    NodeHello,
    NodeReport,
    NodeSilent,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState, commanded_by, why_commanded
from scheduler.model.jobs import JobState
from scheduler.model.lease import Phase
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def test_draining_and_resuming(desk_of: DeskOf) -> None:
    """A draining node finishes its round and gets nothing new until it is resumed."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, NodeCommand(call="c", node="n1", action="drain", user="op"))
    desk.expect(NodeMoved, state=NodeState.DRAINING, why="drain by op")
    desk.expect(Reply, result={"node": "n1"})
    desk.wakes(fill=9)
    desk.until(359)
    assert desk.holding(lease).phase == Phase.STOPPING
    desk.report(exits=(exited(lease),))
    desk.until(1000)
    assert desk.core.state.leases == {}
    desk.tell(1000, NodeCommand(node="n1", action="resume"))
    desk.expect(NodeMoved, state=NodeState.UP)
    desk.wakes(tick=1000)
    desk.until(1010)
    assert desk.job("1").state == JobState.RUNNING


def test_a_drained_node_stays_drained_through_a_loss(desk_of: DeskOf) -> None:
    """The operator's command outlives the silence of the node."""
    desk = desk_of(node())
    desk.tell(0, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.tell(1, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(2, NodeHello(spec=node("n1", 2)))
    desk.settle()
    assert desk.core.state.nodes["n1"].state == NodeState.DRAINING


def test_the_reason_of_a_drain_is_kept(desk_of: DeskOf) -> None:
    """With the operator's name, through a loss of the node and a snapshot, until it is resumed or drained again."""
    desk = desk_of(node())
    desk.run(job())
    desk.tell(9, NodeCommand(node="n1", action="drain", user="op", reason="fan: replaced by Bob"))
    why = "drain by op: fan: replaced by Bob"
    desk.expect(NodeMoved, state=NodeState.DRAINING, why=why)
    desk.settle()
    (lease,) = desk.core.state.leases.values()
    assert why_ended(desk.core.state, lease.lease) == "its node n1 was drained by op"
    desk.tell(10, NodeSilent(node="n1"))
    desk.settle()
    assert desk.core.state.nodes["n1"].why != why
    desk.tell(11, NodeHello(spec=node("n1", 2)))
    desk.settle()
    entries = [desk.core.state.nodes["n1"], SchedulerState.restore(desk.core.state.snapshot()).nodes["n1"]]
    assert [entry.why for entry in entries] == [why] * 2
    desk.tell(12, NodeCommand(node="n1", action="resume", user="op", reason="it is cool"))
    desk.expect(NodeMoved, state=NodeState.UP, why="resume by op: it is cool")
    desk.settle()
    assert desk.core.state.nodes["n1"].drained_why == ""


@pytest.mark.parametrize(
    ("action", "reason"), [("drain", "x" * 257), ("resume", "two\nlines"), ("remove", "it is old")]
)
def test_wrong_reasons_are_refused(desk_of: DeskOf, action: Any, reason: str) -> None:
    """Long ones, several lines, and one that nobody would find again."""
    desk = desk_of(node())
    desk.tell(9, NodeCommand(call="c", node="n1", action=action, reason=reason))
    assert desk.expect(Reply, code="invalid").error.startswith("reason: ")


@pytest.mark.parametrize("user", ["", "op"])
@pytest.mark.parametrize("reason", ["", "moved by hand", "a: b by c"])
def test_the_operator_is_read_from_the_reason(user: str, reason: str) -> None:
    """Whatever words the reason has, and in journals of releases without reasons."""
    assert commanded_by(why_commanded("drain", user, reason)) == user


def test_a_drain_by_the_agent_is_remembered(desk_of: DeskOf) -> None:
    """A drain by a stopping agent outlives its silence and a snapshot, until an operator drains the node."""
    desk = desk_of(node())
    desk.tell(0, NodeCommand(node="n1", action="drain", user="its agent", by_agent=True))
    desk.settle()
    desk.tell(1, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(2, NodeHello(spec=node("n1", 2)))
    desk.settle()
    restored = SchedulerState.restore(desk.core.state.snapshot())
    entries = (desk.core.state.nodes["n1"], restored.nodes["n1"])
    assert [(entry.drained, entry.left) for entry in entries] == [(True, True)] * 2
    desk.tell(3, NodeCommand(node="n1", action="drain", user="op"))
    desk.settle()
    assert (desk.core.state.nodes["n1"].drained, desk.core.state.nodes["n1"].left) == (True, False)


@pytest.mark.parametrize(
    ("before", "command", "code", "named"),
    [
        ([], ("n9", "drain"), "not_found", "'n9'"),
        ([], ("n1", "remove"), "refused", "'n1' is up"),
        ([NodeSilent(node="n1")], ("n1", "drain"), "refused", "'n1' is silent"),
        ([NodeSilent(node="n1")], ("n1", "remove"), "refused", "'n1'"),
    ],
)
def test_commands_that_do_not_fit_are_refused(
    desk_of: DeskOf, before: list[Any], command: tuple[str, Any], code: str, named: str, wording: Wording
) -> None:
    """The error has the command to run first."""
    desk = desk_of(node())
    desk.run(job())
    for message in before:
        desk.tell(9, message)
        desk.settle()
    desk.tell(10, NodeCommand(call="c", node=command[0], action=command[1]))
    error = desk.expect(Reply, code=code).error
    assert named in error
    wording(error)


def test_an_empty_node_can_be_removed(desk_of: DeskOf) -> None:
    """A drained, empty node is removed for good, with the operator's name, and its later reports are ignored."""
    desk = desk_of(node(), node("n2"))
    desk.tell(0, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.tell(1, NodeCommand(call="c", node="n1", action="remove", user="opa"))
    desk.expect(NodeRemoved, node="n1", by="opa")
    desk.expect(Reply, result={"node": "n1"})
    desk.wakes(tick=1)
    desk.tell(2, NodeReport(node="n1", generation=3))
    desk.all_claimed()


def test_a_node_that_was_removed_may_come_back(desk_of: DeskOf) -> None:
    """An agent refuses sets older than the last one it received, so numbering continues from there."""
    desk = desk_of(node(), node("n2"))
    (lease,) = desk.run(job(nodes=("n1",)))
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    generation = desk.core.state.nodes["n1"].generation
    for action in ("drain", "remove"):
        desk.tell(10, NodeCommand(node="n1", action=action))
        desk.settle()
    desk.tell(11, NodeHello(spec=node("n1", 2)))
    desk.expect(NodeJoined)
    assert desk.expect(SendLeases).generation >= generation > 0
    desk.settle()


def test_a_node_that_is_promised_to_a_job_is_not_removed(desk_of: DeskOf, wording: Wording) -> None:
    """A lease waits on this node for its job to stop elsewhere: the node is not empty."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job())
    name = desk.holding(lease).lease.gpus[0].rpartition(":")[0]
    other = "n2" if name == "n1" else "n1"
    desk.tell(10, NodeSilent(node=name))
    desk.until(desk.core.state.round.ends_s + 1)
    assert desk.core.state.claims
    desk.tell(desk.now_s, NodeCommand(node=other, action="drain"))
    desk.settle()
    desk.tell(desk.now_s, NodeCommand(call="c", node=other, action="remove"))
    wording(desk.expect(Reply, code="refused").error, node=other)


def test_jobs_that_still_run_on_a_draining_node_are_named(desk_of: DeskOf, wording: Wording) -> None:
    """The refusal names the jobs that the operator has to wait for."""
    desk = desk_of(node("n1"))
    desk.run(job(), job())
    desk.tell(desk.now_s, NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.tell(desk.now_s, NodeCommand(call="c", node="n1", action="remove"))
    reply = desk.expect(Reply, code="refused")
    assert "1 and 2" in reply.error
    wording(reply.error)


def test_the_end_of_a_lease_on_a_drained_node_names_the_operator(desk_of: DeskOf, wording: Wording) -> None:
    """The node receives the true reason, so that the job's log has the user who drained the node."""
    desk = desk_of(node("n1"))
    (lease,) = desk.run(job())
    desk.tell(desk.now_s, NodeCommand(node="n1", action="drain", user="ada"))
    desk.until(desk.core.state.round.ends_s - 3.0)
    desk.tell(desk.core.state.round.ends_s - 2.0, Woke(what="plan"))
    sent = desk.expect(SendLeases, node="n1", last=(lease,))
    ((ended, why),) = sent.why_ended
    assert (ended, "n1" in why, "ada" in why) == (lease, True, True)
    wording(why)
    desk.settle()
