"""Reports from nodes: accepted and ignored ones, retries, gangs and pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.apply import apply
from scheduler.core.effects import SendLeases
from scheduler.core.facts import (
    CheckpointSaved,
    GpusBroken,
    GpusFilled,
    JobMoved,
    LeaseClosed,
    LeaseRecalled,
    LeasesStarted,
    ProgressMade,
    RanksExited,
    RoundPlanned,
)
from scheduler.core.messages import (
    HeldLease,
    JobCommand,
    NodeCommand,
    NodeHello,
    NodeReport,
    NodeSilent,
    Progress,
    Woke,
)
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState, Move
from scheduler.model.lease import Bundle, Lease, Phase
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def hello(name: str = "n1", *held: str, gpus: int = 2, ran_s: float = 5.0, **more: Any) -> NodeHello:
    """Return the hello of a node that still holds these leases."""
    return NodeHello(
        spec=node(name, gpus, **more),
        held=tuple(HeldLease(lease=lease, steps=10.0, ran_s=ran_s) for lease in held),
    )


# -------------------------------------------------------------------------------------------------- reports


def test_a_start_counts_once(desk_of: DeskOf) -> None:
    """A start that is reported twice is one fact."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(started=(lease,))
    desk.all_claimed()


@pytest.mark.parametrize(
    "report",
    [
        {"started": ("77",)},
        {"progress": (Progress("77", 1.0, 0.0, 1.0),)},
        {"node": "n2", "started": ("1",)},
        {"node": "n2", "progress": (Progress("1", 900.0, 900.0, 1.0),)},
        {"progress": (Progress("1", math.nan, 0.0, 1.0),)},
        {"progress": (Progress("1", math.inf, 0.0, 1.0),)},
        {"progress": (Progress("1", 10.0, 20.0, 1.0),)},
        {"progress": (Progress("1", 10.0, -1.0, 1.0),)},
        {"progress": (Progress("1", 10.0, 0.0, math.nan),)},
        {"node": "n9", "started": ("1",)},
        {"broken_gpus": (2, -1)},
    ],
)
def test_reports_that_do_not_count(desk_of: DeskOf, report: dict[str, Any]) -> None:
    """P4: unknown leases, leases of other nodes, and impossible figures change nothing."""
    desk = desk_of(node(), node("n2"))
    assert desk.run(job(nodes=("n1",))) == ["1"]
    name = report.pop("node", "n1")
    generation = desk.core.state.nodes[name].generation if name != "n9" else 0
    desk.tell(9, NodeReport(node=name, generation=generation, **report))
    desk.all_claimed()


@pytest.mark.parametrize(("name", "exit"), [("n2", exited("1")), ("n1", exited("77"))])
def test_exits_of_others_are_answered_with_the_set(desk_of: DeskOf, name: str, exit: Any) -> None:
    """P4: an exit counts only from a node of the lease; the node gets its set of leases again."""
    desk = desk_of(node(), node("n2"))
    desk.run(job(nodes=("n1",)))
    desk.report(name, exits=(exit,))
    desk.expect(SendLeases, node=name)
    desk.wakes(fill=desk.now_s)
    assert desk.holding("1").phase == Phase.RUNNING


def test_an_exit_is_taken_once(desk_of: DeskOf) -> None:
    """P3: an exit that is reported again changes nothing."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(exits=(exited(lease, "finished", 1000.0), exited(lease, "finished", 1000.0)))
    desk.expect(LeaseClosed)
    desk.expect(SendLeases)
    desk.wakes(fill=8)
    desk.report(exits=(exited(lease, "failed", 0.0),))
    desk.expect(SendLeases)
    desk.wakes(fill=8)
    assert (desk.job("1").state, desk.job("1").failures) == (JobState.COMPLETED, 0)


def test_late_progress_does_not_turn_back(desk_of: DeskOf) -> None:
    """P4: a report that was overtaken by a newer one is dropped; steps only rise."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(progress=(Progress(lease, 90.0, 60.0, 9.0),))
    desk.expect(CheckpointSaved)
    desk.expect(ProgressMade)
    desk.report(progress=(Progress(lease, 50.0, 40.0, 5.0),))
    desk.all_claimed()
    assert (desk.job("1").steps_done, desk.job("1").steps_saved) == (90.0, 60.0)


def test_progress_starts_a_lease(desk_of: DeskOf) -> None:
    """The report of the start was lost; a job that makes progress has started."""
    desk = desk_of(node())
    desk.submit(job())
    desk.until(8)
    lease = desk.job("1").lease or ""
    desk.report(progress=(Progress(lease, 90.0, 60.0, 9.0),))
    desk.expect(LeasesStarted, leases=(lease,))
    desk.expect(CheckpointSaved)
    desk.expect(ProgressMade)
    assert (desk.holding(lease).phase, desk.job("1").started_s) == (Phase.RUNNING, 8)


@pytest.mark.parametrize(
    "figures",
    [
        {"ran_s": 0.0, "stepping_s": math.nan},
        {"ran_s": math.inf},
        {"ran_s": -1.0},
        {"ran_s": math.nan},
        {"steps": math.nan},
        {"saved": 1e9},
    ],
)
def test_an_exit_with_impossible_figures_is_an_exit(desk_of: DeskOf, figures: dict[str, Any]) -> None:
    """The processes are gone, so the GPUs are free; the reported figures are replaced by the recorded ones."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(exits=(exited(lease, **figures),))
    end = desk.expect(LeaseClosed).exit
    assert (end.outcome, end.steps, end.saved) == ("yielded", 0.0, 0.0)
    assert 0 <= end.ran_s < math.inf
    desk.settle()
    assert desk.core.state.holders == {}


def test_an_exit_of_a_lease_that_never_ran_keeps_the_steps(desk_of: DeskOf) -> None:
    """Steps from an agent that never had the job are ignored."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.job("1").steps_done = desk.job("1").steps_saved = 300.0
    desk.report(exits=(exited(lease, steps=0.0, ran_s=0.0, stepping_s=0.0),))
    assert desk.expect(LeaseClosed).exit.steps == 300.0
    desk.settle()


def test_a_report_on_an_older_set_is_answered_with_the_newest(desk_of: DeskOf) -> None:
    """A lost set of leases is sent again after the next report."""
    desk = desk_of(node())
    desk.run(job())
    desk.report(generation=0)
    assert desk.expect(SendLeases).generation == desk.core.state.nodes["n1"].generation


def test_a_broken_gpu_is_not_given_out(desk_of: DeskOf) -> None:
    """The broken GPU is recorded once, and no job is placed on it."""
    desk = desk_of(node())
    desk.report(broken_gpus=(0,))
    desk.expect(GpusBroken, gpus=(0,))
    desk.wakes(tick=0)
    desk.report(broken_gpus=(0,))
    desk.all_claimed()
    (lease,) = desk.run(job())
    assert desk.holding(lease).lease.gpus == ("n1:1",)


def test_a_broken_gpu_stays_out_until_a_person_resumes_its_node(desk_of: DeskOf) -> None:
    """Neither a new link nor a resume by the agent puts the GPU back in use; a node with other GPUs has none broken."""
    desk = desk_of(node())
    desk.report(broken_gpus=(0,))
    desk.settle()
    entry = desk.core.state.nodes["n1"]
    desk.tell(1.0, NodeSilent(node="n1"))
    desk.settle()
    assert entry.state == NodeState.LOST
    desk.tell(2.0, NodeHello(spec=node()))
    desk.settle()
    assert (entry.state, entry.broken) == (NodeState.UP, {0})
    desk.tell(3.0, NodeCommand(node="n1", action="resume", user="its agent", by_agent=True))
    desk.settle()
    assert entry.broken == {0}
    desk.tell(4.0, NodeCommand(node="n1", action="resume", user="ada"))
    desk.settle()
    assert (entry.state, entry.broken) == (NodeState.UP, set())
    desk.report(broken_gpus=(0,))
    desk.settle()
    desk.tell(5.0, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(6.0, NodeHello(spec=node(gpus=1)))
    desk.settle()
    assert entry.broken == set()


# -------------------------------------------------------------------------------------------------- retries


def test_a_failed_job_is_retried_as_often_as_asked(desk_of: DeskOf, wording: Wording) -> None:
    """Retries count the job's own failures; after the last one it has failed, with its exit code as the reason."""
    desk = desk_of(node())
    (lease,) = desk.run(job(retries=1))
    desk.report(exits=(exited(lease, "failed", code=3),))
    desk.expect(LeaseClosed)
    wording(desk.expect(JobMoved, move=Move.RETRY).why)
    desk.settle()
    desk.until(20)
    again = desk.job("1").lease or ""
    assert again not in ("", lease)
    desk.report(exits=(exited(again, "failed", code=3),))
    desk.expect(LeaseClosed)
    why = desk.expect(JobMoved, move=Move.FAIL).why
    assert re.findall(r"\d+", why) == ["3", "1", "1"]
    wording(why)
    desk.settle()


@pytest.mark.parametrize(
    ("outcome", "limit", "named"),
    [
        ("node_failed", {"retries_node": 0}, "retries_node = 0"),
        ("yielded", {"retries_preemption": 0}, "retries_preemption = 0"),
    ],
)
def test_other_retries_are_counted_apart(
    desk_of: DeskOf, outcome: Any, limit: dict[str, Any], named: str, wording: Wording
) -> None:
    """Failures of nodes and preemptions have limits of their own; without one they are free."""
    desk = desk_of(node())
    lease, other = desk.run(job(**limit), job())
    desk.report(exits=(exited(lease, outcome), exited(other, outcome)))
    why = desk.expect(JobMoved, job="1", move=Move.FAIL).why
    assert named in why
    wording(why)
    desk.settle()
    assert desk.job("2").state == JobState.PREEMPTED


# ---------------------------------------------------------------------------------------------------- gangs


def gang(desk_of: DeskOf, **spec: Any) -> tuple[Desk, str]:
    """A running job over two nodes."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    (lease,) = desk.run(job(gpus=2, **spec))
    return desk, lease


def test_a_gang_is_gone_when_all_its_nodes_are(desk_of: DeskOf) -> None:
    """The first node's exit frees no GPU; the last one's frees all."""
    desk, lease = gang(desk_of)
    desk.report("n1", exits=(exited(lease, "finished", 1000.0),))
    desk.expect(CheckpointSaved)
    desk.expect(RanksExited, node="n1")
    desk.wakes(fill=8)
    desk.report("n1", exits=(exited(lease, "finished", 1000.0),))
    desk.expect(SendLeases, node="n1")
    desk.wakes(fill=8)
    desk.report("n2", exits=(exited(lease, "finished", 1000.0),))
    desk.expect(RanksExited, node="n2")
    desk.expect(LeaseClosed)
    desk.settle()
    assert desk.job("1").state == JobState.COMPLETED


@pytest.mark.parametrize(("outcome", "counts"), [("failed", (1, 0)), ("node_failed", (0, 1))])
def test_a_rank_that_dies_ends_the_attempt_as_it_died(
    desk_of: DeskOf, outcome: Any, counts: tuple[int, int]
) -> None:
    """The other ranks yield because of it, but the attempt counts as failed, not as preempted."""
    desk, lease = gang(desk_of, retries=0 if outcome == "failed" else 5)
    desk.report("n1", exits=(exited(lease, outcome, 70.0, saved=60.0, code=9),))
    desk.expect(CheckpointSaved)
    assert "n1" in desk.expect(LeaseRecalled, lease=lease).why
    desk.expect(RanksExited)
    assert {desk.expect(SendLeases).node for _ in "ab"} == {"n1", "n2"}
    desk.wakes(fill=8, lapse=desk.core.state.round.ends_s + 30)
    desk.report("n2", exits=(exited(lease, "yielded", 70.0, saved=60.0),))
    end = desk.expect(LeaseClosed).exit
    assert end.outcome == outcome
    desk.settle()
    entry = desk.job("1")
    assert (entry.failures, entry.node_failures) == counts
    assert entry.preemptions == 0
    assert entry.state == (JobState.FAILED if outcome == "failed" else JobState.PREEMPTED)
    assert ("code 9" in entry.why) == (outcome == "failed")


def test_a_gang_is_not_over_because_one_node_lost_its_ranks(desk_of: DeskOf) -> None:
    """P5: the other node still has processes; its GPUs are free once it reports their exit."""
    desk, lease = gang(desk_of)
    desk.tell(9, hello("n1", gpus=1))
    desk.expect(LeaseRecalled, lease=lease)
    assert desk.expect(RanksExited, node="n1").exit.outcome == "node_failed"
    desk.settle()
    assert desk.core.state.holders == {"n1:0": (lease,), "n2:0": (lease,)}
    desk.report("n2", exits=(exited(lease),))
    desk.expect(LeaseClosed)
    desk.settle()
    assert (desk.core.state.holders, desk.job("1").node_failures) == ({}, 1)


def test_a_hello_from_a_node_whose_ranks_are_done(desk_of: DeskOf) -> None:
    """The exit is recorded already, so a hello without the lease changes nothing."""
    desk, lease = gang(desk_of)
    desk.report("n1", exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    desk.tell(9, hello("n1", gpus=1))
    desk.settle()
    desk.report("n2", exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    assert desk.job("1").state == JobState.COMPLETED


# ---------------------------------------------------------------------------------------------------- pairs


def test_a_partner_that_never_came_leaves_no_trace(desk_of: DeskOf) -> None:
    """When one of two jobs that wait for a shared GPU is cancelled, the other has the GPU alone from the start."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job())
    desk.submit(job(), job(job_type="lm"))
    pair = Bundle(("2", "3"), "v100", 1)
    granted = tuple(Lease(str(i), str(i), pair, 1, 0, ("n1:0",), 2, 720.0) for i in (2, 3))
    apply(
        desk.core.state,
        358,
        RoundPlanned(number=2, starts_s=360, ends_s=720, ended=(lease,), granted=granted),
    )
    desk.tell(359, JobCommand(job="3", action="cancel"))
    desk.settle()
    assert (desk.holding("2").phase, desk.holding("2").bundle.jobs) == (Phase.WAITING, ("2",))
    desk.report(exits=(exited(lease),))
    desk.expect(LeaseClosed)
    (sent,) = desk.expect(SendLeases).leases
    assert (sent.id, sent.bundle.jobs) == ("2", ("2",))
    desk.settle()


def test_a_fill_in_mid_round_disturbs_no_running_job(desk_of: DeskOf) -> None:
    """Idle GPUs are given out for the rest of the round; nodes of running jobs receive nothing."""
    desk = desk_of(node("n1", 1), node("n2", 1))
    desk.run(job())
    desk.submit(job())
    desk.tell(100, Woke(what="fill"))
    (lease,) = desk.expect(GpusFilled).granted
    assert desk.expect(SendLeases).leases[0].id == lease.id
    assert lease.ends_s == desk.core.state.round.ends_s


def test_an_attempt_that_reported_no_steps_takes_none_back(desk_of: DeskOf) -> None:
    """If an attempt dies at once and reports 0 steps, the checkpoint of the attempt before it still counts."""
    desk = desk_of(node("n1", 1))
    (first,) = desk.run(job(retries=3))
    desk.report(exits=(exited(first, "failed", steps=400.0),))
    desk.until(desk.now_s + 400)
    (second,) = desk.core.state.leases
    desk.report(started=(second,))
    desk.settle()
    desk.report(exits=(exited(second, "failed", steps=0.0, stepping_s=0.0),))
    assert (desk.job("1").steps_done, desk.job("1").steps_saved) == (400.0, 400.0)
    desk.settle()


@pytest.mark.parametrize("ran_s", [-1.0, math.inf, math.nan])
def test_an_impossible_run_time_is_replaced(desk_of: DeskOf, ran_s: float) -> None:
    """The exit counts, and an impossible run time is replaced by the time since the start."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job())
    desk.report(started=(lease,))
    desk.settle()
    desk.now_s += 50.0
    desk.report(exits=(exited(lease, "yielded", steps=0.0, stepping_s=0.0, ran_s=ran_s),))
    assert 0.0 <= desk.job("1").run_s <= 60.0
    desk.settle()
