"""Messages from users: every fact and effect of each message, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import Reply, SendLeases, WakeAt
from scheduler.core.facts import JobMoved, JobSubmitted, LeaseClosed, LeaseRecalled, LeasesStarted
from scheduler.core.messages import JobCommand, SubmitJobs, Woke
from scheduler.model.jobs import Dependency, JobState, Move
from scheduler.model.lease import Phase
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def refused(desk: Desk, code: str, named: str, wording: Wording) -> Reply:
    """Check that the only effect is a refusal with this code, whose error has this value."""
    reply = desk.expect(Reply, code=code)
    assert named in reply.error
    wording(reply.error)
    desk.all_claimed()
    return reply


# ------------------------------------------------------------------------------------------------- submission


def test_a_submission_is_a_fact_a_reply_and_a_pulse(desk_of: DeskOf) -> None:
    """The job is accepted, its id comes back, and the pulse starts at once."""
    desk = desk_of(node())
    desk.tell(5, SubmitJobs(call="c", specs=(job(),), user="ann"))
    assert desk.expect(JobSubmitted, job="1").spec.user == "ann"
    assert desk.expect(Reply, call="c").result == {"jobs": ["1"]}
    desk.wakes(tick=5)
    assert desk.job("1").submitted_s == 5


def test_an_array_is_one_job_per_index(desk_of: DeskOf) -> None:
    """Members are numbered as asked for; the next job gets the number after the array's."""
    desk = desk_of(node())
    assert desk.submit(job(array=(0, 3)), job()) == ["1_0", "1_3", "2"]
    assert desk.core.state.arrays == {"1": ["1_0", "1_3"]}
    assert [entry.spec.array for entry in desk.core.state.jobs.values()] == [(0,), (3,), ()]


def test_the_same_key_again_is_the_same_jobs(desk_of: DeskOf) -> None:
    """P2: a retried submission is answered with the existing jobs, and nothing else happens."""
    desk = desk_of(node())
    message = SubmitJobs(call="c", specs=(job(), job(name="x")), key="k", user="ann")
    desk.tell(0, message)
    desk.settle()
    desk.tell(1, message)
    assert desk.expect(Reply).result == {"jobs": ["1", "2"]}


@pytest.mark.parametrize("other", [{"specs": (job(gpus=2),)}, {"user": "bob"}])
def test_the_same_key_for_something_else_is_refused(
    desk_of: DeskOf, other: dict[str, Any], wording: Wording
) -> None:
    """P2: a key that was used for another request is an error with its own code."""
    desk = desk_of(node())
    first = {"specs": (job(),), "key": "k", "user": "ann"}
    desk.tell(0, SubmitJobs(**first))
    desk.settle()
    desk.tell(1, SubmitJobs(call="c", **{**first, **other}))
    refused(desk, "key_reused", "'k'", wording)


def test_submissions_without_a_key_are_different_jobs(desk_of: DeskOf) -> None:
    """Without a key the same submission twice is two jobs."""
    desk = desk_of(node())
    assert (desk.submit(job()), desk.submit(job())) == (["1"], ["2"])


@pytest.mark.parametrize(
    ("spec", "field", "named"),
    [
        ({"gpus": 5}, "gpus", "4 (v100)"),
        ({"gpus": 0}, "gpus", "between 1"),
        ({"worker_types": ("h100",)}, "worker_types", "'h100'"),
        ({"excluded_worker_types": ("h100",)}, "excluded_worker_types", "'h100'"),
        ({"excluded_worker_types": ("v100", "k80")}, "worker_types", "worker type"),
        ({"nodes": ("n9",)}, "nodes", "'n9'"),
        ({"nodes": ("n3",), "gpus": 2}, "nodes", "1 of the 2"),
        ({"worker_types": ("k80",), "gpus": 2}, "gpus", "1 (k80)"),
        ({"steps": float("nan")}, "steps", "nan"),
        ({"after": (Dependency("7"),)}, "after", "'7'"),
        ({"after": (Dependency("prepare"),)}, "after", "'prepare'"),
    ],
)
def test_an_impossible_job_is_refused_by_its_field(
    desk_of: DeskOf, spec: dict[str, Any], field: str, named: str, wording: Wording
) -> None:
    """A job that can never run is refused with the field to mend, and nothing else happens."""
    room: dict[str, Any] = {"cpus": 8.0, "gpu_memory_gb": 16.0}
    desk = desk_of(node("n1", **room), node("n2", **room), node("n3", 1, "k80", **room))
    desk.tell(0, SubmitJobs(call="c", specs=(job(**spec),)))
    assert refused(desk, "invalid", named, wording).result == {"field": field}


def test_one_impossible_job_refuses_the_whole_call(desk_of: DeskOf, wording: Wording) -> None:
    """All jobs are accepted or none; the error names the one at fault."""
    desk = desk_of(node())
    desk.tell(0, SubmitJobs(call="c", specs=(job(), job(gpus=3))))
    assert refused(desk, "invalid", "specs[1].gpus", wording).result == {"field": "specs[1].gpus"}
    assert desk.core.state.jobs == {}


def test_an_empty_submission_is_refused(desk_of: DeskOf, wording: Wording) -> None:
    """A submission without jobs is an error, not a success."""
    desk = desk_of(node())
    desk.tell(0, SubmitJobs(call="c", specs=()))
    refused(desk, "invalid", "no job", wording)


def test_a_cluster_without_nodes_refuses_nothing(desk_of: DeskOf) -> None:
    """Before any node has joined, any job may still become possible."""
    desk = desk_of()
    assert desk.submit(job(gpus=512)) == ["1"]


# ----------------------------------------------------------------------------------------------- dependencies


def test_a_dependent_runs_after_the_success_it_waits_for(desk_of: DeskOf) -> None:
    """The job it depends on completes, and the dependent job gets GPUs."""
    desk = desk_of(node(gpus=1))
    (lease,) = desk.run(job())
    (second,) = desk.submit(job(after=(Dependency("1"),)))
    assert desk.job(second).blocked_by == {"1"}
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.until(20)
    assert desk.job(second).state == JobState.RUNNING


def test_a_dependent_fails_without_the_success_it_waits_for(desk_of: DeskOf, wording: Wording) -> None:
    """A job fails when the job it depends on cannot succeed any more, and so do its own dependents."""
    desk = desk_of(node())
    desk.submit(job(), job(name="b"))
    desk.submit(job(after=(Dependency("1"),)))
    desk.submit(job(after=(Dependency("3"),)))
    desk.submit(job(after=(Dependency("1", "ended"),)))
    desk.tell(0, JobCommand(job="1", action="cancel"))
    desk.expect(JobMoved, job="1", move=Move.CANCEL)
    for dependent, dependency in (("3", "1"), ("4", "3")):
        why = desk.expect(JobMoved, job=dependent, move=Move.FAIL).why
        assert f"job {dependency}," in why
        wording(why)
    desk.wakes(tick=0)
    assert desk.job("5").blocked_by == set()


def test_a_dependency_on_success_and_end_needs_both(desk_of: DeskOf) -> None:
    """A job that waits for the success and the end of another one does not run after its mere end."""
    desk = desk_of(node())
    desk.submit(job())
    desk.submit(job(after=(Dependency("1"), Dependency("1", "ended"))))
    desk.tell(0, JobCommand(job="1", action="cancel"))
    desk.settle()
    assert desk.job("2").state == JobState.FAILED


def test_a_dependency_that_has_failed_already_is_refused(desk_of: DeskOf, wording: Wording) -> None:
    """A dependency on the success of a cancelled job is refused; one on its mere end is met at once."""
    desk = desk_of(node())
    desk.submit(job())
    desk.tell(0, JobCommand(job="1", action="cancel"))
    desk.settle()
    desk.tell(1, SubmitJobs(call="c", specs=(job(after=(Dependency("1"),)),)))
    refused(desk, "invalid", "job '1'", wording)
    (name,) = desk.submit(job(after=(Dependency("1", "ended"),)))
    assert desk.job(name).blocked_by == set()


def test_an_array_is_waited_for_as_a_whole(desk_of: DeskOf) -> None:
    """A dependency on an array waits for every member that has not ended."""
    desk = desk_of(node())
    desk.submit(job(array=(0, 1)))
    (name,) = desk.submit(job(after=(Dependency("1"),)))
    assert desk.job(name).blocked_by == {"1_0", "1_1"}


def test_a_met_dependency_starts_the_pulse(desk_of: DeskOf) -> None:
    """A job that ends after the pulse has stopped lets its dependents run at once."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.submit(job(after=(Dependency("1"),)))
    desk.tell(9, JobCommand(job="1", action="hold"))
    desk.until(380)
    assert desk.core.state.round.ends_s <= 380
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.until(400)
    assert desk.job("2").state == JobState.RUNNING


# --------------------------------------------------------------------------------------------------- commands


def test_cancelling_a_running_job_recalls_its_lease(desk_of: DeskOf) -> None:
    """The job is cancelled now; its GPUs stay taken until its exit, or until its lease has certainly lapsed."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, JobCommand(call="c", job="1", action="cancel", user="ann"))
    desk.expect(JobMoved, job="1", move=Move.CANCEL, why="cancel by ann", by="ann")
    desk.expect(LeaseRecalled, lease=lease, why="cancelled by ann")
    desk.expect(Reply, result={"jobs": ["1"]})
    assert desk.expect(SendLeases, node="n1").leases == ()
    desk.wakes(fill=9, lapse=desk.core.state.round.ends_s + 30)
    assert desk.holding(lease).phase == Phase.STOPPING
    desk.report(exits=(exited(lease),))
    desk.expect(LeaseClosed)
    desk.expect(SendLeases)
    desk.wakes(fill=9)
    assert (desk.job("1").state, desk.core.state.leases) == (JobState.CANCELLED, {})


def test_a_recalled_lease_lapses_though_nothing_else_happens(desk_of: DeskOf) -> None:
    """P5: a cancelled job whose exit is never reported does not hold its GPUs longer than its lease."""
    desk = desk_of(node())
    desk.run(job(gpus=2))
    desk.tell(9, JobCommand(job="1", action="cancel"))
    desk.until(desk.core.state.round.ends_s + 29)
    assert desk.core.state.holders != {}
    desk.until(desk.core.state.round.ends_s + 31)
    assert desk.core.state.holders == {}


def test_a_completion_after_the_cancel_changes_nothing(desk_of: DeskOf) -> None:
    """P3: a terminal state never changes, whatever exit its processes report later."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, JobCommand(job="1", action="cancel"))
    desk.settle()
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    assert (desk.job("1").state, desk.job("1").ended_s) == (JobState.CANCELLED, 9)


@pytest.mark.parametrize("action", ["hold", "requeue"])
def test_a_stopped_job_that_was_done_is_completed(desk_of: DeskOf, action: Any) -> None:
    """A job that finished its steps before it could be stopped is completed, once."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, JobCommand(job="1", action=action))
    desk.settle()
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    assert (desk.job("1").state, desk.job("1").steps_done) == (JobState.COMPLETED, 1000.0)


def test_a_held_job_keeps_its_steps_and_waits_for_a_person(desk_of: DeskOf) -> None:
    """Held while it runs, the job saves and stops; only a release lets it run again."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.tell(9, JobCommand(job="1", action="hold"))
    desk.settle()
    desk.report(exits=(exited(lease, steps=70.0),))
    desk.until(2000)
    assert (desk.job("1").state, desk.job("1").steps_done) == (JobState.HELD, 70.0)
    desk.tell(2000, JobCommand(job="1", action="release"))
    desk.expect(JobMoved, job="1", move=Move.RELEASE, why="release")
    desk.wakes(tick=2000)
    desk.until(2010)
    assert (desk.job("1").state, desk.job("1").attempt) == (JobState.RUNNING, 2)


@pytest.mark.parametrize(
    "action",
    ["release", "requeue"],
)
def test_a_command_that_does_not_fit_is_refused(desk_of: DeskOf, action: Any, wording: Wording) -> None:
    """A job accepts the commands that the table of moves allows in its state; others get an error, and no fact."""
    desk = desk_of(node())
    desk.submit(job())
    desk.tell(1, JobCommand(call="c", job="1", action=action))
    refused(desk, "refused", "job 1 is queued", wording)


def test_a_held_job_is_not_held_again(desk_of: DeskOf, wording: Wording) -> None:
    """The error is that the job is held already, not that a held job cannot be held."""
    desk = desk_of(node())
    desk.submit(job())
    desk.tell(1, JobCommand(job="1", action="hold"))
    desk.settle()
    desk.tell(2, JobCommand(call="c", job="1", action="hold"))
    refused(desk, "refused", "job 1 is held", wording)


def test_commands_for_unknown_and_for_ended_jobs_are_refused(desk_of: DeskOf, wording: Wording) -> None:
    """An unknown id is not found; an array that has ended has no members left."""
    desk = desk_of(node())
    desk.tell(0, JobCommand(call="c", job="7", action="cancel"))
    refused(desk, "not_found", "job '7'", wording)
    desk.submit(job(array=(0, 1)))
    desk.tell(0, JobCommand(job="1", action="cancel"))
    desk.settle()
    for name, named in (("1_0", "job 1_0 is cancelled"), ("1", "array '1'")):
        desk.tell(1, JobCommand(call="c", job=name, action="cancel"))
        refused(desk, "refused", named, wording)


def test_a_command_for_an_array_reaches_every_member(desk_of: DeskOf) -> None:
    """Members that have ended are left alone."""
    desk = desk_of(node())
    desk.submit(job(array=(0, 1, 2)))
    desk.tell(0, JobCommand(job="1_1", action="cancel"))
    desk.settle()
    desk.tell(0, JobCommand(call="c", job="1", action="hold"))
    assert desk.expect(Reply).result == {"jobs": ["1_0", "1_2"]}
    assert [desk.expect(JobMoved, move=Move.HOLD).job for _ in "ab"] == ["1_0", "1_2"]
    desk.wakes(tick=0)


# ----------------------------------------------------------------------------------------------------- limits


def test_a_time_limit_counts_running_time_only(desk_of: DeskOf, wording: Wording) -> None:
    """The clock starts with the processes, not with the submission; at the limit the lease is recalled."""
    desk = desk_of(node())
    desk.submit(job(time_limit_s=100.0))
    desk.until(50)
    lease = desk.job("1").lease or ""
    desk.report(started=(lease,))
    desk.expect(LeasesStarted, leases=(lease,))
    assert desk.expect(WakeAt).what == "review"
    desk.until(149)
    assert desk.job("1").state == JobState.RUNNING
    desk.tell(150, Woke(what="review"))
    why = desk.expect(JobMoved, move=Move.FAIL).why
    assert "100 s" in why
    wording(why)
    desk.expect(LeaseRecalled, lease=lease)
    desk.expect(SendLeases, leases=())
    desk.settle()


def test_a_job_starts_no_earlier_than_asked(desk_of: DeskOf) -> None:
    """The job starts at its time, even if nothing else happens then."""
    desk = desk_of(node())
    desk.submit(job(earliest_start_s=5000.0))
    desk.until(4999)
    assert (desk.job("1").state, desk.job("1").attempt) == (JobState.QUEUED, 0)
    desk.until(5010)
    assert desk.job("1").state == JobState.RUNNING


def test_a_job_whose_time_has_come_gets_a_share(desk_of: DeskOf) -> None:
    """The solver is asked again when the time comes, so that the job does not have to wait for idle GPUs."""
    desk = desk_of(node(gpus=1), policy="las")
    desk.submit(job(steps=None), job(steps=None, earliest_start_s=1000.0))
    desk.until(2200)
    assert "2" in desk.core.state.shares.job_row


def test_a_job_fails_at_its_cost_limit(desk_of: DeskOf, wording: Wording) -> None:
    """Cost is counted when a lease closes; at the limit no further attempt is paid for."""
    desk = desk_of(node())
    (lease,) = desk.run(job(max_cost=1.0))
    desk.job("1").cost_usd = 2.0
    desk.report(exits=(exited(lease),))
    desk.expect(LeaseClosed)
    wording(desk.expect(JobMoved, move=Move.FAIL).why)
    desk.settle()
