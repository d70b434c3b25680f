"""Failed starts: nodes that are taken out of use, how they come back, and pauses of jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.facts import NodeMoved
from scheduler.core.failed_starts import (
    JOB_PAUSE_MAX_S,
    NODE_PAUSE_MAX_S,
    NODE_PAUSE_S,
    STARTS_FAILED_MAX,
)
from scheduler.core.messages import JobCommand, NodeCommand, NodeHello, NodeSilent
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
NOTHING: dict[str, Any] = {"outcome": "node_failed", "steps": 0.0, "stepping_s": 0.0, "ran_s": 0.0}


def fail_on(desk: Desk, *names: str) -> list[str]:
    """Fail every start that is under way on these nodes; return the jobs concerned."""
    jobs = []
    for name in names:
        for holding in desk.core.state.on_node(name):
            if holding.started_s is None:
                jobs.append(holding.lease.job)
                desk.report(name, exits=(exited(holding.lease.id, **NOTHING),))
                desk.settle()
    return jobs


def start_all(desk: Desk) -> None:
    """Let every start that is under way succeed."""
    for holding in list(desk.core.state.leases.values()):
        if holding.started_s is None:
            desk.report(holding.lease.gpus[0].rpartition(":")[0], started=(holding.lease.id,))
            desk.settle()


def state_of(desk: Desk, name: str) -> NodeState:
    """Return the state of a node."""
    return desk.core.state.nodes[name].state


def failing(desk_of: DeskOf, *jobs: Any, nodes: int = 2, until_s: float = 30.0) -> Desk:
    """Return a desk with jobs on a cluster, on whose node n1 every start fails."""
    desk = desk_of(*(node(f"n{i}", 1) for i in range(1, nodes + 1)))
    desk.submit(*jobs)
    while desk.now_s < until_s:
        desk.until(desk.now_s + 0.5)
        fail_on(desk, "n1")
        start_all(desk)
    return desk


def test_a_node_on_which_starts_fail_in_a_row_is_taken_out(desk_of: DeskOf) -> None:
    """After three failed starts of two jobs the node gets nothing for a minute, and the jobs run elsewhere."""
    desk = failing(desk_of, job(), job(), nodes=3)
    bad = desk.core.state.nodes["n1"]
    assert (bad.state, len(bad.failed_starts)) == (NodeState.FAULTY, STARTS_FAILED_MAX)
    assert bad.back_s is not None
    assert NODE_PAUSE_S - 30.0 < bad.back_s - desk.now_s <= NODE_PAUSE_S
    assert {desk.job(name).state for name in ("1", "2")} == {JobState.RUNNING}
    assert sum(desk.job(name).node_failures for name in ("1", "2")) == STARTS_FAILED_MAX


def test_a_node_comes_back_and_the_next_start_decides(desk_of: DeskOf) -> None:
    """The pause doubles with each start that fails, up to an hour; a job that runs on the node resets it."""
    desk = failing(desk_of, job(), job(), job())
    pauses = []
    for _ in range(8):
        back_s = desk.core.state.nodes["n1"].back_s
        assert back_s is not None
        # No lease on n2 lapses without having started: that would count as a failed start there.
        while desk.now_s < back_s:
            start_all(desk)
            desk.until(min(desk.now_s + 300.0, back_s))
        assert state_of(desk, "n1") == NodeState.UP
        while not fail_on(desk, "n1"):
            start_all(desk)
            desk.until(desk.now_s + 10.0)
        assert state_of(desk, "n1") == NodeState.FAULTY
        pauses.append((desk.core.state.nodes["n1"].back_s or 0.0) - desk.now_s)
    assert pauses == [min(NODE_PAUSE_S * 2**n, NODE_PAUSE_MAX_S) for n in range(1, 9)]
    back_s = desk.core.state.nodes["n1"].back_s or 0.0
    while not desk.core.state.on_node("n1"):
        desk.until(max(desk.now_s + 10.0, back_s))
    start_all(desk)
    (holding,) = desk.core.state.on_node("n1")
    desk.report("n1", exits=(exited(holding.lease.id, "finished", 1000.0),))
    desk.settle()
    assert (desk.core.state.nodes["n1"].failed_starts, desk.core.state.nodes["n1"].pauses) == ([], 0)


def test_one_job_takes_out_one_node_and_no_more(desk_of: DeskOf) -> None:
    """A job that fails on other nodes too is counted against none of them, and is held in the end."""
    desk = desk_of(*(node(f"n{i}", 1) for i in range(1, 4)))
    desk.submit(job())
    out_of_use = 0
    while desk.job("1").state != JobState.HELD:
        desk.until(desk.now_s + 1.0)
        fail_on(desk, "n1", "n2", "n3")
        states = [state_of(desk, name) for name in ("n1", "n2", "n3")]
        out_of_use = max(out_of_use, states.count(NodeState.FAULTY))
    assert out_of_use == 1
    assert len(desk.job("1").failed_on) > 1
    assert {state_of(desk, name) for name in ("n1", "n2", "n3")} == {NodeState.UP}


def test_an_array_counts_as_one_job(desk_of: DeskOf) -> None:
    """Failures of several members count as failures of one job, so they do not take out the only node."""
    desk = failing(desk_of, job(array=(0, 1, 2, 3)), nodes=1)
    assert state_of(desk, "n1") == NodeState.UP
    assert len(desk.core.state.nodes["n1"].failed_starts) > STARTS_FAILED_MAX


def test_a_start_that_hangs_counts_as_a_failed_start(desk_of: DeskOf) -> None:
    """A lease that lapses without any report, though the link is up, counts against its node, and the job pauses."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    for _ in range(STARTS_FAILED_MAX):
        (name,) = desk.submit(job(nodes=("n1",)))
        desk.until(desk.now_s + 400.0)
        lease = desk.job(name).lease
        assert lease is not None
        desk.tell(desk.now_s, JobCommand(job=name, action="requeue"))
        desk.until((desk.holding(lease).stop_by_s or 0.0) + 0.001)
        assert desk.job(name).node_failures == 1
        assert desk.job(name).again_s > desk.now_s
        desk.tell(desk.now_s, JobCommand(job=name, action="cancel"))
        desk.settle()
    assert state_of(desk, "n1") == NodeState.FAULTY


def test_a_start_on_a_node_without_a_link_is_no_failed_start(desk_of: DeskOf) -> None:
    """A lease on a node that cannot be reached counts neither against the node nor against the job."""
    desk = desk_of(node("n1", 1))
    desk.submit(job())
    desk.until(desk.now_s + 8.0)
    desk.tell(desk.now_s, NodeSilent(node="n1"))
    desk.until(desk.now_s + 1000.0)
    assert desk.job("1").lease is None
    assert (desk.core.state.nodes["n1"].failed_starts, desk.job("1").node_failures) == ([], 0)


def test_a_start_ordered_by_an_earlier_process_is_no_failed_start(desk_of: DeskOf) -> None:
    """A scheduler that restarts before the lease lapses may have missed the node's reports, so it blames no node."""
    desk = desk_of(node("n1", 1))
    (name,) = desk.submit(job())
    desk.until(desk.now_s + 400.0)
    lease = desk.job(name).lease
    assert lease is not None
    desk.tell(desk.now_s, JobCommand(job=name, action="requeue"))
    desk.settle()
    desk.take_over(desk.now_s + 1.0)
    desk.until((desk.holding(lease).stop_by_s or 0.0) + 0.001)
    assert lease not in desk.core.state.leases
    assert (desk.core.state.nodes["n1"].failed_starts, desk.job(name).node_failures) == ([], 0)


def test_a_failing_program_does_not_blame_its_node(desk_of: DeskOf) -> None:
    """An exit code of the program, however soon, uses up a retry of the job, and the node stays in use."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    for lease in desk.run(*[job(retries=5)] * 2):
        name = desk.holding(lease).lease.gpus[0].rpartition(":")[0]
        desk.report(name, exits=(exited(lease, "failed", ran_s=0.1, code=1),))
        desk.settle()
    assert not desk.core.state.nodes["n1"].failed_starts


def test_attempts_of_a_job_wait_longer_each_time(desk_of: DeskOf) -> None:
    """Pauses are 1, 2, 4 … seconds, at most five minutes, for its own failures too; a long run resets them."""
    desk = desk_of(node("n1", 1))
    desk.submit(job(retries=20))
    pauses = []
    for ran_s in (*[5.0] * 10, 400.0, 5.0):
        while desk.job("1").lease is None:
            desk.until(desk.now_s + 0.25)
        lease = desk.job("1").lease or ""
        desk.report(started=(lease,))
        desk.settle()
        desk.report(exits=(exited(lease, "failed", ran_s=ran_s, code=1),))
        desk.settle()
        pauses.append(max(desk.job("1").again_s - desk.now_s, 0.0))
    assert pauses == [*[min(2.0**n, JOB_PAUSE_MAX_S) for n in range(10)], 0.0, 1.0]


def test_hold_and_release_end_a_pause(desk_of: DeskOf) -> None:
    """A job that a user held and released is tried at once."""
    desk = failing(desk_of, job(), nodes=1)
    assert desk.job("1").again_s > desk.now_s
    for action in ("hold", "release"):
        desk.tell(desk.now_s, JobCommand(job="1", action=action))
        desk.settle()
    assert desk.core.state.eligible(desk.job("1"), desk.now_s)


def test_an_operator_brings_a_node_back_with_a_clean_slate(desk_of: DeskOf) -> None:
    """After `resume` the node is in use at once, and three more starts have to fail."""
    desk = failing(desk_of, job(), job())
    desk.tell(desk.now_s, NodeCommand(node="n1", action="resume", user="ann"))
    desk.expect(NodeMoved, state=NodeState.UP, mended=True)
    desk.settle()
    assert not desk.core.state.nodes["n1"].failed_starts


def test_a_lost_link_does_not_end_the_pause(desk_of: DeskOf) -> None:
    """An agent that restarts is no proof that its node can start jobs."""
    desk = failing(desk_of, job(), job(), until_s=10.0)
    desk.tell(desk.now_s, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(desk.now_s, NodeHello(spec=node("n1", 1)))
    desk.settle()
    assert state_of(desk, "n1") == NodeState.FAULTY


@pytest.mark.parametrize("at_once", [True, False])
def test_an_agent_that_reports_trouble_gets_nothing_until_it_is_over(desk_of: DeskOf, at_once: bool) -> None:
    """Trouble reported in a Hello or later takes the node out of use, until the agent reports that it is over."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    trouble = "the state directory cannot be written: No space left on device"
    if at_once:
        desk.tell(desk.now_s, NodeHello(spec=node("n1", 1), trouble=trouble))
    else:
        desk.report("n1", trouble=trouble)
    desk.expect(NodeMoved, state=NodeState.FAULTY, why=trouble, back_s=None)
    desk.settle()
    desk.submit(job(), job())
    desk.until(5_000.0)
    assert state_of(desk, "n1") == NodeState.FAULTY
    assert not desk.core.state.on_node("n1")
    desk.report("n1", trouble="")
    desk.settle()
    desk.until(desk.now_s + 400.0)
    assert desk.core.state.on_node("n1")


def test_a_reason_can_be_kept_whatever_an_agent_writes(desk_of: DeskOf) -> None:
    """An agent's reason is kept on one line, of a bounded length, and recorded once."""
    desk = desk_of(node("n1", 1))
    trouble = "disk\nfull \ud800" + "x" * 10_000
    desk.report("n1", trouble=trouble)
    why = desk.expect(NodeMoved, state=NodeState.FAULTY).why
    assert (why[:10], why.isprintable(), len(why)) == ("disk full ", True, 500)
    desk.settle()
    desk.report("n1", trouble=trouble)


def test_pauses_survive_a_takeover(desk_of: DeskOf) -> None:
    """A scheduler that takes over has the pauses of jobs and nodes, and wakes for them."""
    desk = failing(desk_of, job(), job(), job(), until_s=5.0)
    before = desk.core.state
    after = SchedulerState.restore(before.snapshot())
    assert (after.jobs, after.nodes) == (before.jobs, before.nodes)
    assert after.to_review.keys() == before.to_review.keys() != set()
    desk.take_over(desk.now_s)
    desk.settle()
    assert desk.timers["nodes"] == desk.core.state.nodes["n1"].back_s
