"""A gang over several nodes ends node by node: what its exits come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.facts import LeaseClosed
from scheduler.core.messages import JobCommand
from scheduler.core.on_nodes import STARTS_MAX
from scheduler.explain import explain
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from scheduler.model.lease import nodes_of
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def ended(desk_of: DeskOf, *exits: tuple[str, Any]) -> tuple[Desk, LeaseClosed]:
    """A gang over n1 (rank 0) and n2, whose nodes report these exits in this order."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2))
    assert desk.holding(lease).lease.gpus[0].startswith("n1")
    for name, end in exits:
        desk.report(name, exits=(exited(lease, **end),))
        if desk.facts and name != exits[-1][0]:
            desk.settle()
    closed = desk.claim(LeaseClosed)
    desk.settle()
    return desk, closed


DONE = {"outcome": "finished", "steps": 1000.0}
STOPPED = {"outcome": "yielded", "steps": 990.0, "saved": 0.0}


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
def test_done_is_what_rank_zero_says_is_done(desk_of: DeskOf, order: tuple[str, str]) -> None:
    """Rank 0 did all steps and saved them; that another rank was stopped in its last second changes nothing."""
    said = {"n1": DONE, "n2": STOPPED}
    desk, closed = ended(desk_of, *((name, said[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.steps, closed.exit.saved) == ("finished", 1000.0, 1000.0)
    assert desk.job("1").state == JobState.COMPLETED


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
def test_a_gang_is_not_done_because_another_rank_is(desk_of: DeskOf, order: tuple[str, str]) -> None:
    """Rank 0 yielded at what it saved: the job goes on from there, whoever reported last."""
    said = {"n1": {"outcome": "yielded", "steps": 990.0, "saved": 980.0}, "n2": DONE}
    desk, closed = ended(desk_of, *((name, said[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.saved) == ("yielded", 980.0)
    assert desk.job("1").state == JobState.PREEMPTED
    assert desk.job("1").steps_saved == 980.0


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("dead", ["n1", "n2"])
def test_a_rank_that_failed_keeps_the_gang_from_being_done(
    desk_of: DeskOf, order: tuple[str, str], dead: str
) -> None:
    """One part failed: the attempt failed, though all others say that they finished."""
    said = dict.fromkeys(order, DONE) | {dead: {"outcome": "failed", "steps": 1000.0, "code": 9}}
    desk, closed = ended(desk_of, *((name, said[name]) for name in order))
    assert (closed.exit.outcome, closed.exit.code) == ("failed", 9)
    assert desk.job("1").state == JobState.FAILED


def test_the_whole_gang_ran_as_long_as_its_last_node(desk_of: DeskOf) -> None:
    """Figures are rank 0's; the time that is paid for is that of the node that was the last to be done."""
    first, last = {**DONE, "ran_s": 10.0, "stepping_s": 8.0}, {**DONE, "ran_s": 14.0, "stepping_s": 2.0}
    _, closed = ended(desk_of, ("n1", first), ("n2", last))
    assert (closed.exit.ran_s, closed.exit.stepping_s) == (14.0, 8.0)


# ---------------------------------------------------------------------------- starts of which nothing comes

NOTHING = {"outcome": "node_failed", "steps": 0.0, "stepping_s": 0.0, "ran_s": 0.0}


def next_lease(desk: Desk) -> str:
    """The lease of the next attempt: the job pauses before it, or one of its nodes does."""
    while desk.job("1").lease is None:
        desk.until(desk.now_s + 10.0)
    return desk.job("1").lease or ""


def start_in_vain(desk: Desk) -> tuple[str, ...]:
    """Its nodes do not come together: all report that nothing ran. Which nodes these were."""
    lease = next_lease(desk)
    nodes = nodes_of(desk.holding(lease).lease.gpus)
    for name in nodes:
        desk.report(name, exits=(exited(lease, **NOTHING),))
        desk.settle()
    return nodes


def test_a_start_of_which_nothing_came_is_told(desk_of: DeskOf) -> None:
    """It counts as a failure of nodes, and the job is queued as before: it never ran."""
    desk = desk_of(*(node(name, 1) for name in ("n1", "n2", "n3")))
    desk.submit(job(gpus=2))
    nodes = start_in_vain(desk)
    mine = desk.job("1")
    assert (mine.state, mine.why) == (JobState.QUEUED, f"it could not be started on {', '.join(nodes)}")
    assert (mine.node_failures, mine.preemptions) == (1, 0)


def test_a_gang_that_never_starts_is_held(desk_of: DeskOf) -> None:
    """After ten starts in a row it is not the nodes' fault: a person looks. Released, it is tried anew."""
    desk = desk_of(*(node(name, 1) for name in ("n1", "n2", "n3")))
    desk.submit(job(gpus=2))
    for _ in range(STARTS_MAX - 1):
        start_in_vain(desk)
        assert desk.job("1").state == JobState.QUEUED
    nodes = start_in_vain(desk)
    assert desk.job("1").state == JobState.HELD
    assert (
        f"10 starts in a row came to nothing, the last on {', '.join(nodes)}"
        in explain(desk.core.state, "1").text
    )
    assert not desk.core.state.leases
    desk.tell(desk.now_s, JobCommand(job="1", action="release"))
    desk.settle()
    start_in_vain(desk)
    assert desk.job("1").state == JobState.QUEUED


def test_a_start_that_succeeds_begins_the_count_anew(desk_of: DeskOf) -> None:
    """Nodes that come together now and then are slow, not wrong."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    desk.submit(job(gpus=2))
    for _ in range(STARTS_MAX - 1):
        start_in_vain(desk)
    desk.report("n1", started=(next_lease(desk),))
    desk.settle()
    assert desk.job("1").unstarted == 0


def test_a_job_on_one_node_is_held_too(desk_of: DeskOf) -> None:
    """Alone on the only node, it may be at fault itself: the node stays in use, and the job waits for a person."""
    desk = desk_of(node("n1", 1))
    desk.submit(job())
    for _ in range(STARTS_MAX):
        start_in_vain(desk)
    assert (desk.job("1").state, desk.job("1").node_failures) == (JobState.HELD, STARTS_MAX)
    assert desk.core.state.nodes["n1"].state == NodeState.UP
