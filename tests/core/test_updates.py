"""Updates of jobs after their submission: what may change when, what is recorded, and what runs afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import Reply
from scheduler.core.facts import JobMoved, JobUpdated, LeaseRecalled
from scheduler.core.messages import JobCommand, UpdateJob
from scheduler.core.state import SchedulerState
from scheduler.explain import explain, render
from scheduler.model.changes import JobChanges
from scheduler.model.jobs import JobState
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def update(desk: Desk, job_id: str, at_s: float | None = None, **changes: Any) -> None:
    """Let ann update a job."""
    message = UpdateJob(call="c", job=job_id, changes=JobChanges(**changes), user="ann")
    desk.tell(desk.now_s if at_s is None else at_s, message)


def test_an_update_is_a_fact_with_who_and_when(desk_of: DeskOf) -> None:
    """The spec changes at once, and the job remembers the value before."""
    desk = desk_of(node())
    (name,) = desk.submit(job(weight=2.0, max_cost=9.0))
    update(desk, name, 7, weight=3.0, max_cost=None)
    desk.expect(JobUpdated, job=name, changes=JobChanges(weight=3.0, max_cost=None), by="ann")
    assert desk.expect(Reply, call="c").result == {"jobs": [name]}
    desk.settle()
    spec, (entry,) = desk.job(name).spec, desk.job(name).updates
    assert (spec.weight, spec.max_cost, spec.steps) == (3.0, None, 1000.0)
    assert (entry.at_s, entry.by, entry.before) == (7, "ann", JobChanges(weight=2.0, max_cost=9.0))


def test_the_same_update_again_records_nothing(desk_of: DeskOf) -> None:
    """A user may repeat a call whose answer was lost."""
    desk = desk_of(node())
    desk.submit(job())
    update(desk, "1", weight=3.0)
    desk.settle()
    update(desk, "1", weight=3.0)
    desk.expect(Reply, result={"jobs": ["1"]})
    desk.all_claimed()


def test_an_array_is_updated_as_a_whole(desk_of: DeskOf) -> None:
    """Jobs of the array that have ended stay as they are."""
    desk = desk_of(node())
    desk.submit(job(array=(0, 1)))
    desk.tell(desk.now_s, JobCommand(job="1_0", action="cancel"))
    desk.settle()
    update(desk, "1", retries=4)
    assert desk.expect(Reply).result == {"jobs": ["1_1"]}
    desk.settle()
    assert [desk.job(name).spec.retries for name in ("1_0", "1_1")] == [0, 4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "changes"),
        ({"weight": -1.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": 8, "gpus_max": 4}, "gpus"),
        ({"gpus": 64}, "gpus"),
        ({"worker_types": ("h100",)}, "worker_types"),
        ({"name": "a\nb"}, "name"),
    ],
)
def test_a_change_that_no_submission_could_make_is_refused(
    desk_of: DeskOf, changes: dict[str, Any], named: str, wording: Wording
) -> None:
    """The error names the field, and the job stays as it is."""
    desk = desk_of(node())
    desk.submit(job())
    update(desk, "1", **changes)
    reply = desk.expect(Reply, code="invalid")
    desk.all_claimed()
    assert (reply.error.partition(":")[0], desk.job("1").updates) == (named, ())
    wording(reply.error)


@pytest.mark.parametrize("changes", [{"gpus": 1}, {"worker_types": ("v100",)}])
def test_a_running_job_keeps_its_shape(desk_of: DeskOf, changes: dict[str, Any], wording: Wording) -> None:
    """What decides where it runs can change once it is held; the rest changes while it runs."""
    desk = desk_of(node())
    desk.run(job(gpus=2))
    update(desk, "1", **changes)
    wording(desk.expect(Reply, code="refused").error)
    desk.all_claimed()
    update(desk, "1", weight=2.0, name="other", time_limit_s=600.0, deadline_s=900.0, retries=1, tenant="a")
    desk.expect(JobUpdated)
    assert desk.expect(Reply).code == ""
    desk.settle()
    assert desk.job("1").state is JobState.RUNNING


def test_an_ended_job_is_not_updated(desk_of: DeskOf, wording: Wording) -> None:
    """Neither is an array all of whose jobs have ended, nor a job that does not exist."""
    desk = desk_of(node())
    desk.submit(job(), job(array=(0,)))
    for name in ("1", "2"):
        desk.tell(desk.now_s, JobCommand(job=name, action="cancel"))
        desk.settle()
    for name in ("1", "2", "9"):
        update(desk, name, weight=2.0)
        wording(desk.expect(Reply).error)
        desk.all_claimed()


def test_a_shorter_time_limit_ends_a_job_that_has_run_longer(desk_of: DeskOf) -> None:
    """The limit counts from now on, so the job fails in the same turn, by the limit's own reason."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(started=(lease,))
    desk.until(desk.now_s + 100)
    update(desk, "1", time_limit_s=60.0)
    desk.expect(JobUpdated)
    assert "60 s" in desk.expect(JobMoved, move="fail").why
    desk.expect(LeaseRecalled)
    desk.settle()


def test_a_held_job_runs_at_its_new_size_and_never_at_the_old_one(desk_of: DeskOf) -> None:
    """Until an allocation knows the new size, the job waits, though the old columns are still in force."""
    desk = desk_of(node(gpus=4))
    (lease,) = desk.run(job(gpus=4))
    desk.report(started=(lease,))
    desk.settle()
    desk.tell(desk.now_s, JobCommand(job="1", action="hold"))
    desk.settle()
    desk.report(exits=(exited(lease),))
    desk.settle()
    update(desk, "1", gpus=2)
    desk.settle()
    desk.tell(desk.now_s, JobCommand(job="1", action="release"))
    desk.settle()
    assert desk.core.state.reshaped == {"1": desk.core.state.asked.number}
    sizes = set()
    for _ in range(40):
        desk.until(desk.now_s + 20)
        sizes |= {len(holding.lease.gpus) for holding in desk.core.state.leases.values()}
        for name, holding in desk.core.state.leases.items():
            if holding.started_s is None:
                desk.report(started=(name,))
                desk.settle()
    assert (sizes, desk.core.state.reshaped) == ({2}, {})


def test_a_state_remembers_updates_over_a_snapshot(desk_of: DeskOf) -> None:
    """A scheduler that starts from a snapshot knows the new spec, its history, and the columns that are void."""
    desk = desk_of(node())
    desk.submit(job())
    update(desk, "1", gpus=2, weight=5.0)
    desk.settle()
    state = SchedulerState.restore(desk.core.state.snapshot())
    assert (state.jobs["1"].spec, state.jobs["1"].updates) == (desk.job("1").spec, desk.job("1").updates)
    assert state.reshaped == desk.core.state.reshaped != {}


def test_only_the_latest_updates_are_remembered(desk_of: DeskOf) -> None:
    """A script that updates a job every minute does not make the state grow."""
    desk = desk_of(node())
    desk.submit(job())
    for weight in range(2, 30):
        update(desk, "1", weight=float(weight))
        desk.settle()
    updates = desk.job("1").updates
    assert (len(updates), updates[-1].changes.weight) == (10, 29.0)


# --------------------------------------------------------------------------------------------------- explain


def test_explain_lists_the_updates(desk_of: DeskOf, wording: Wording) -> None:
    """Each with its time, its user, and the values before and after."""
    desk = desk_of(node())
    desk.submit(job(weight=2.0, time_limit_s=3600.0, gpus=2))
    desk.tell(desk.now_s, JobCommand(job="1", action="hold"))
    desk.settle()
    update(desk, "1", 60, weight=3.0, time_limit_s=None, name="x", tenant="org/a", retries=2)
    desk.settle()
    update(desk, "1", 120, gpus=1, gpus_max=2, worker_types=("v100",), deadline_s=7200.0, max_cost=5.0)
    desk.settle()
    wording(render(explain(desk.core.state, "1", 180.0)))


def test_explain_says_that_a_new_size_waits_for_an_allocation(desk_of: DeskOf, wording: Wording) -> None:
    """The old columns are void, so their share is not shown."""
    desk = desk_of(node(gpus=4), plan_lead_s=2.0)
    desk.run(job(gpus=4))
    desk.submit(job(gpus=4))
    desk.until(desk.now_s + 400)
    waiting = next(name for name in ("1", "2") if desk.job(name).lease is None)
    update(desk, waiting, gpus=1)
    desk.settle()
    explanation = explain(desk.core.state, waiting)
    assert explanation.reason == "waiting_for_allocation"
    assert {way.share for way in explanation.evidence} == {0.0}
    wording(explanation.text)
