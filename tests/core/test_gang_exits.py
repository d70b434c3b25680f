"""A gang over several nodes ends node by node: how its exits are combined into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import SendLeases
from scheduler.core.facts import LeaseClosed
from scheduler.core.messages import JobCommand
from scheduler.core.on_nodes import STARTS_MAX
from scheduler.explain import explain
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from scheduler.model.lease import Phase, nodes_of
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def ended(desk_of: DeskOf, *exits: tuple[str, Any]) -> tuple[Desk, LeaseClosed]:
    """Return a desk with a gang over n1 (rank 0) and n2, after their reports of these exits in this order."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2))
    assert desk.holding(lease).lease.gpus[0].startswith("n1")
    for name, end in exits:
        desk.report(name, exits=(exited(lease, **end),))
        if desk.facts and name != exits[-1][0]:
            desk.settle()
    closed = desk.expect(LeaseClosed)
    desk.settle()
    return desk, closed


DONE = {"outcome": "finished", "steps": 1000.0}
STOPPED = {"outcome": "yielded", "steps": 990.0, "saved": 0.0}


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
def test_a_gang_is_done_when_rank_zero_is_done(desk_of: DeskOf, order: tuple[str, str]) -> None:
    """Rank 0 did all steps and saved them; another rank that was stopped in its last second changes nothing."""
    exit_of = {"n1": DONE, "n2": STOPPED}
    desk, closed = ended(desk_of, *((name, exit_of[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.steps, closed.exit.saved) == ("finished", 1000.0, 1000.0)
    assert desk.job("1").state == JobState.COMPLETED


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
def test_another_rank_that_is_done_does_not_complete_a_gang(desk_of: DeskOf, order: tuple[str, str]) -> None:
    """Rank 0 yielded at its checkpoint: the job continues from there, whichever node reported last."""
    exit_of = {"n1": {"outcome": "yielded", "steps": 990.0, "saved": 980.0}, "n2": DONE}
    desk, closed = ended(desk_of, *((name, exit_of[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.saved) == ("yielded", 980.0)
    assert desk.job("1").state == JobState.PREEMPTED
    assert desk.job("1").steps_saved == 980.0


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("dead", ["n1", "n2"])
def test_a_rank_that_failed_keeps_the_gang_from_being_done(
    desk_of: DeskOf, order: tuple[str, str], dead: str
) -> None:
    """If one part failed, the attempt failed, though all other parts report that they finished."""
    exit_of = dict.fromkeys(order, DONE) | {dead: {"outcome": "failed", "steps": 1000.0, "code": 9}}
    desk, closed = ended(desk_of, *((name, exit_of[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.code) == ("failed", 9)
    assert desk.job("1").state == JobState.FAILED


def test_the_whole_gang_ran_as_long_as_its_last_node(desk_of: DeskOf) -> None:
    """The gang's figures are those of rank 0, except the run time, which is paid for: the longest of all nodes."""
    first, last = {**DONE, "ran_s": 10.0, "stepping_s": 8.0}, {**DONE, "ran_s": 14.0, "stepping_s": 2.0}
    _, closed = ended(desk_of, ("n1", first), ("n2", last))
    assert (closed.exit.ran_s, closed.exit.stepping_s) == (14.0, 8.0)


@pytest.mark.parametrize("outcome", ["yielded", "failed", "node_failed"])
def test_a_gang_does_not_go_on_without_a_rank(desk_of: DeskOf, outcome: str) -> None:
    """A rank may stop alone, because its node missed a renewal: the others would wait for it round after round."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2))
    desk.report("n2", exits=(exited(lease, outcome),))
    assert desk.expect(SendLeases, node="n1").leases == ()
    desk.settle()
    assert desk.holding(lease).phase is Phase.STOPPING


def test_a_gang_goes_on_while_its_ranks_finish(desk_of: DeskOf) -> None:
    """A rank that has done all its steps stops no other: rank 0 may still save."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2))
    desk.report("n2", exits=(exited(lease, "finished"),))
    desk.settle()
    assert desk.holding(lease).phase is Phase.RUNNING


def test_a_node_receives_no_lease_that_has_exited_there(desk_of: DeskOf) -> None:
    """If the set still had the lease, the node would report its exit again, and get the set again, without end."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2))
    desk.report("n2", exits=(exited(lease, "finished"),))
    desk.settle()
    desk.report("n2", exits=(exited(lease, "finished"),))
    assert desk.expect(SendLeases, node="n2").leases == ()
    desk.settle()


# --------------------------------------------------------------------------------------------- failed starts

NOTHING = {"outcome": "node_failed", "steps": 0.0, "stepping_s": 0.0, "ran_s": 0.0}


def next_lease(desk: Desk) -> str:
    """Return the lease of the next attempt, after the pause of the job or of its nodes."""
    while desk.job("1").lease is None:
        desk.until(desk.now_s + 10.0)
    return desk.job("1").lease or ""


def start_in_vain(desk: Desk) -> tuple[str, ...]:
    """Let every node of the gang report that nothing ran; return the nodes."""
    lease = next_lease(desk)
    nodes = nodes_of(desk.holding(lease).lease.gpus)
    for name in nodes:
        desk.report(name, exits=(exited(lease, **NOTHING),))
        desk.settle()
    return nodes


def test_a_failed_start_is_recorded(desk_of: DeskOf, wording: Wording) -> None:
    """A failed start counts as a failure of nodes, and the job, which never ran, is queued as before."""
    desk = desk_of(*(node(name, 1) for name in ("n1", "n2", "n3")))
    desk.submit(job(gpus=2))
    nodes = start_in_vain(desk)
    entry = desk.job("1")
    assert entry.state == JobState.QUEUED
    assert ", ".join(nodes) in entry.why
    wording(entry.why, nodes=", ".join(nodes))
    assert (entry.node_failures, entry.preemptions) == (1, 0)


def test_a_gang_that_never_starts_is_held(desk_of: DeskOf, wording: Wording) -> None:
    """After ten failed starts in a row the job is held for its user; after a release, it is tried again."""
    desk = desk_of(*(node(name, 1) for name in ("n1", "n2", "n3")))
    desk.submit(job(gpus=2))
    for _ in range(STARTS_MAX - 1):
        start_in_vain(desk)
        assert desk.job("1").state == JobState.QUEUED
    nodes = start_in_vain(desk)
    assert desk.job("1").state == JobState.HELD
    text = explain(desk.core.state, "1").text
    assert f"{STARTS_MAX} starts" in text
    assert ", ".join(nodes) in text
    wording(text, nodes=", ".join(nodes))
    assert not desk.core.state.leases
    desk.tell(desk.now_s, JobCommand(job="1", action="release"))
    desk.settle()
    start_in_vain(desk)
    assert desk.job("1").state == JobState.QUEUED


def test_a_start_that_succeeds_resets_the_count(desk_of: DeskOf) -> None:
    """Nodes that start a gang now and then are slow, not faulty."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    desk.submit(job(gpus=2))
    for _ in range(STARTS_MAX - 1):
        start_in_vain(desk)
    desk.report("n1", started=(next_lease(desk),))
    desk.settle()
    assert desk.job("1").unstarted == 0


def test_a_job_on_one_node_is_held_too(desk_of: DeskOf) -> None:
    """On the only node the job itself may be at fault: the node stays in use, and the job is held."""
    desk = desk_of(node("n1", 1))
    desk.submit(job())
    for _ in range(STARTS_MAX):
        start_in_vain(desk)
    assert (desk.job("1").state, desk.job("1").node_failures) == (JobState.HELD, STARTS_MAX)
    assert desk.core.state.nodes["n1"].state == NodeState.UP
