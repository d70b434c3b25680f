"""A turn in which nothing ran does not count: the job keeps its state and reason, and nothing is counted."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.messages import JobCommand, NodeCommand
from scheduler.core.state import SchedulerState
from scheduler.explain import Reason, explain
from scheduler.model.jobs import Job, JobState
from scheduler.model.lease import node_of
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def promised(desk_of: DeskOf, **changed: float) -> tuple[Desk, str, str]:
    """Return a desk with two members of an array on one GPU: the running one does not stop, so the other waits."""
    desk = desk_of(node("n1", 1), stay_rounds=1.0, **{"lease_margin_s": 2000.0, **changed})
    jobs = desk.submit(job(array=(0, 1), steps=1e6))
    desk.until(8.0)
    (lease,) = desk.core.state.leases
    desk.report(started=(lease,))
    desk.settle()
    runs = desk.holding(lease).lease.job
    (other,) = {*jobs} - {runs}
    while desk.job(other).lease is None:
        desk.until(desk.core.state.round.ends_s - 1.0)
    assert desk.job(other).state == JobState.RUNNING
    return desk, runs, other


def next_round(desk: Desk) -> None:
    """Plan the next round and let it begin."""
    desk.until(desk.core.state.round.ends_s + 1.0)


def turn_fields(entry: Job) -> tuple[object, ...]:
    """Return the fields of a job's turns that users see."""
    return entry.state, entry.why, entry.preemptions, entry.run_s, entry.started_s


NEVER_RAN = (JobState.QUEUED, "", 0, 0.0, None)


def test_a_job_that_never_had_its_gpus_is_still_queued(desk_of: DeskOf) -> None:
    """A job whose turn passes while another job is being stopped is queued, as before, and not preempted."""
    desk, _, other = promised(desk_of)
    for _ in range(2):
        next_round(desk)
    assert desk.job(other).lease is None
    assert turn_fields(desk.job(other)) == NEVER_RAN
    answer = explain(desk.core.state, other)
    assert (answer.state, answer.reason) == (JobState.QUEUED, Reason.TURN_OF_OTHERS), answer.text
    assert " 0 %" in answer.text


def test_a_job_that_ran_before_keeps_its_reason(desk_of: DeskOf, wording: Wording) -> None:
    """A job that was preempted once is not preempted again by a later turn in which nothing ran."""
    desk, runs, other = promised(desk_of)
    next_round(desk)
    (ending,) = (h.lease.id for h in desk.core.state.leases.values() if h.phase == "stopping")
    desk.report(exits=(exited(ending),))
    desk.settle()
    before = turn_fields(desk.job(runs))
    assert (before[0], before[2]) == (JobState.PREEMPTED, 1)
    wording(before[1])
    desk.report(started=(desk.job(other).lease,))
    desk.settle()
    while desk.job(runs).lease is None:
        desk.until(desk.core.state.round.ends_s - 1.0)
    assert desk.job(runs).state == JobState.RUNNING
    for _ in range(2):
        next_round(desk)
    assert desk.job(runs).lease is None
    assert turn_fields(desk.job(runs)) == before


def test_a_lease_that_was_sent_and_never_started_counts_as_little(desk_of: DeskOf) -> None:
    """The node received the lease, but had not started it when the turn was over: the job is still queued."""
    desk = desk_of(node("n1", 1))
    desk.submit(job(steps=1e6))
    desk.until(8.0)
    desk.tell(9.0, NodeCommand(node="n1", action="drain"))
    desk.settle()
    (lease,) = desk.core.state.leases
    next_round(desk)
    assert desk.holding(lease).phase == "stopping"
    desk.report(exits=(exited(lease, steps=0.0, stepping_s=0.0, ran_s=0.0),))
    desk.settle()
    assert turn_fields(desk.job("1")) == NEVER_RAN


def test_two_empty_turns_in_a_row(desk_of: DeskOf) -> None:
    """The next turn was promised before the node reported that nothing ran in the last one: neither counts."""
    desk = desk_of(node("n1", 1), node("n2", 1), lease_margin_s=2000.0)
    desk.submit(job(steps=1e6))
    desk.until(8.0)
    (lease,) = desk.core.state.leases
    first = node_of(desk.holding(lease).lease.gpus[0])
    (second,) = {"n1", "n2"} - {first}
    desk.tell(9.0, NodeCommand(node=first, action="drain"))
    desk.settle()
    next_round(desk)
    assert desk.job("1").leaving == lease
    assert desk.holding(desk.job("1").lease or "").phase == "waiting"
    desk.report(first, exits=(exited(lease, steps=0.0, stepping_s=0.0, ran_s=0.0),))
    desk.settle()
    following = desk.job("1").lease or ""
    desk.tell(desk.now_s, NodeCommand(node=second, action="drain"))
    desk.settle()
    next_round(desk)
    desk.report(second, exits=(exited(following, steps=0.0, stepping_s=0.0, ran_s=0.0),))
    desk.settle()
    assert turn_fields(desk.job("1")) == NEVER_RAN


def test_a_users_command_in_between_holds(desk_of: DeskOf, wording: Wording) -> None:
    """A job held while it waited for its GPUs is held, and not queued again."""
    desk, _, other = promised(desk_of)
    desk.tell(desk.now_s, JobCommand(job=other, action="hold", user="ann"))
    desk.settle()
    assert turn_fields(desk.job(other))[:2] == (JobState.HELD, "hold by ann")
    desk.tell(desk.now_s, JobCommand(job=other, action="cancel", user="ann"))
    desk.settle()
    text = explain(desk.core.state, other).text
    assert "by ann" in text
    assert "never ran" in text
    wording(text)


def test_the_state_of_before_survives_a_snapshot(desk_of: DeskOf) -> None:
    """A scheduler that is restarted in between restores the same state."""
    desk, _, other = promised(desk_of)
    desk.core.state = SchedulerState.restore(desk.core.state.snapshot())
    for _ in range(2):
        next_round(desk)
    assert turn_fields(desk.job(other)) == NEVER_RAN
