"""Updates of a job's plans: what may change while the job runs, and which plans the cluster allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core import on_jobs
from scheduler.core.effects import Reply
from scheduler.core.facts import JobUpdated
from scheduler.core.messages import JobCommand, NodeCommand, SubmitJobs, UpdateJob
from scheduler.explain import explain
from scheduler.model.bounds import PLANS_FROM_BYTES_MAX
from scheduler.model.changes import JobChanges
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.plans import Plan
from tests.support.desk import Desk, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def plan(gpus: int, rate: float, worker_type: str = "v100", label: str = "", **more: Any) -> Plan:
    """A plan of this width, named after its width unless it has a label."""
    return Plan(worker_type=worker_type, gpus=gpus, label=label or f"p{gpus}", rate=rate, **more)


def gpt(*plans: Plan, **more: Any) -> JobSpec:
    """A job that runs at any width for which it has a plan."""
    widths = [entry.gpus for entry in plans]
    spec = {"job_type": "gpt", "gpus": min(widths), "gpus_min": min(widths), "gpus_max": max(widths)}
    return job(**{**spec, "steps": 1e6, "plans_from": "{}", **more}, plans=plans)


def update(desk: Desk, *plans: Plan, **more: Any) -> Reply:
    """Let ann give job 1 these plans and other fields, and return the reply."""
    changes = JobChanges(**({"plans": plans} if plans else {}), **more)
    desk.tell(desk.now_s, UpdateJob(call="c", job="1", changes=changes, user="ann"))
    reply = desk.expect(Reply)
    desk.settle()
    return reply


def plans_of(desk: Desk) -> list[tuple[int, str]]:
    """The widths and labels of the plans of job 1."""
    return [(entry.gpus, entry.label) for entry in desk.job("1").spec.plans]


def leave(desk: Desk, name: str) -> None:
    """Take a node out of the cluster for good."""
    for action in ("drain", "remove"):
        desk.tell(desk.now_s, NodeCommand(call="n", node=name, action=action))  # type: ignore[arg-type]
        assert not desk.expect(Reply).error
        desk.settle()


# While the job waits.


def test_an_update_is_remembered_without_documents(desk_of: DeskOf) -> None:
    """The fact has everything; what the job remembers, and `explain` shows, is how many plans there were."""
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(plan(1, 1.0, document="{}")))
    new = (plan(1, 1.0, document="{}"), plan(2, 1.9, document='{"stages": [1, 1]}'))
    changes = JobChanges(plans=new, plans_from='{"batch": 8}', gpus=1, gpus_min=1, gpus_max=2)
    desk.tell(desk.now_s, UpdateJob(call="c", job="1", changes=changes, user="ann"))
    fact = desk.expect(JobUpdated, job="1")
    desk.settle()
    assert (fact.changes.plans, fact.changes.plans_from) == (new, '{"batch": 8}')
    assert desk.job("1").spec.plans == new
    (entry,) = desk.job("1").updates
    assert entry.changes.plans == (plan(1, 1.0), plan(2, 1.9))
    (described,) = explain(desk.core.state, "1", desk.now_s).updates
    assert "plans 1 → 2" in described.text


def test_a_type_that_has_left_forbids_no_update(desk_of: DeskOf) -> None:
    """The job runs by its other plans."""
    desk = desk_of(node("n1", 4), node("k1", 2, "k80"))
    desk.submit(gpt(plan(1, 1.0), plan(2, 0.5, "k80"), gpus=1, gpus_max=8, earliest_start_s=1e6))
    leave(desk, "k1")
    assert update(desk, gpus=1, gpus_min=None, gpus_max=None).error == ""
    # New plans may keep those for the type that has left.
    assert update(desk, plan(1, 1.1), plan(2, 0.5, "k80")).error == ""


@pytest.mark.parametrize("field", ["worker_types", "excluded_worker_types"])
def test_a_job_may_go_on_naming_a_type_that_has_left(desk_of: DeskOf, field: str) -> None:
    """A refresh after a type has left changes the plans and leaves the types as they are."""
    desk = desk_of(node("n1", 4), node("k1", 2, "k80"))
    types = {"worker_types": ("k80", "v100"), "excluded_worker_types": ("k80",)}
    desk.submit(gpt(plan(1, 1.0), earliest_start_s=1e6, **{field: types[field]}))
    leave(desk, "k1")
    assert update(desk, plan(1, 1.1), plan(2, 2.0), gpus=1, gpus_min=1, gpus_max=2).error == ""
    # A type that it has not named before is a mistake.
    assert update(desk, worker_types=("v100", "a100")).error.startswith("worker_types: there is no 'a100'")


def test_without_any_of_its_types_a_job_can_be_updated(desk_of: DeskOf) -> None:
    """Its plans are all for types that have left, and another type is there."""
    desk = desk_of(node("n1", 4), node("k1", 2, "k80"))
    desk.submit(gpt(plan(1, 0.5, "k80"), plan(2, 0.9, "k80"), earliest_start_s=1e6))
    leave(desk, "k1")
    assert update(desk, gpus=2, gpus_min=None, gpus_max=None).error == ""
    assert desk.job("1").spec.widest == 2


@pytest.mark.parametrize(
    ("plans", "more", "field"),
    [
        # A new plan for a type that is not there is a mistake.
        ((plan(1, 1.0), plan(2, 1.9, "a100")), {}, "plans[1].worker_type"),
        # So are plans of which the job can use none.
        ((plan(2, 1.9),), {"gpus": 4, "gpus_min": None, "gpus_max": None}, "gpus"),
        ((plan(4, 1.9, gpus_together=4),), {"gpus": 4, "gpus_min": None, "gpus_max": None}, "plans"),
        ((plan(1, 1.0),), {"plans_from": "x" * (PLANS_FROM_BYTES_MAX + 1)}, "plans_from"),
        ((plan(1, 1.0), plan(1, 2.0)), {}, "plans[1]"),
    ],
)
def test_plans_that_cannot_be_used_are_refused(
    desk_of: DeskOf, plans: tuple[Plan, ...], more: dict[str, Any], field: str
) -> None:
    """The error names the field, and the job stays as it is."""
    desk = desk_of(node("n1", 2), node("n2", 2))
    desk.submit(gpt(plan(1, 1.0), earliest_start_s=1e6))
    reply = update(desk, *plans, **more)
    assert (reply.code, reply.error.partition(":")[0], desk.job("1").updates) == ("invalid", field, ())


def test_documents_are_bounded_in_an_update(desk_of: DeskOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of an array stores the documents once for each of its jobs, in one record."""
    monkeypatch.setattr(on_jobs, "DOCUMENTS_BYTES_MAX", 100)
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(plan(1, 1.0), array=(0, 1), earliest_start_s=1e6))
    reply = update(desk, plan(1, 1.0, document="x" * 51))
    assert (reply.code, reply.error.partition(":")[0]) == ("invalid", "plans")
    assert update(desk, plan(1, 1.0, document="x" * 50)).error == ""


def test_plans_are_removed_with_what_they_came_from(desk_of: DeskOf) -> None:
    """A job without plans remembers no source of plans."""
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(plan(1, 1.0), job_type="cnn", earliest_start_s=1e6))
    desk.tell(desk.now_s, UpdateJob(call="c", job="1", changes=JobChanges(plans=())))
    assert desk.expect(Reply, code="invalid").error.startswith("plans_from")
    desk.settle()
    desk.tell(desk.now_s, UpdateJob(call="c", job="1", changes=JobChanges(plans=(), plans_from="")))
    assert desk.expect(Reply).error == ""
    desk.settle()
    assert desk.job("1").spec.plans == ()


# While the job runs.


def test_the_plan_by_which_a_job_runs_stays(desk_of: DeskOf) -> None:
    """It is neither dropped nor replaced, for the job's processes know no other; all other plans are."""
    desk = desk_of(node("n1", 2))
    desk.run(gpt(plan(1, 1.0), plan(2, 1.9)))
    assert update(desk, plan(1, 1.1, label="new"), plan(2, 2.2, label="new")).error == ""
    assert plans_of(desk) == [(1, "new"), (2, "p2")]
    assert update(desk, plan(1, 1.1, label="new")).error == ""
    assert plans_of(desk) == [(1, "new"), (2, "p2")]


def test_a_running_job_gets_wider_plans(desk_of: DeskOf) -> None:
    """The range of a running job may change together with its plans, and the job moves when a round decides so."""
    desk = desk_of(node("n1", 2))
    (lease,) = desk.run(gpt(plan(1, 1.0)))
    assert update(desk, plan(1, 1.0), plan(2, 1.9), gpus=1, gpus_min=1, gpus_max=2).error == ""
    assert desk.job("1").lease == lease
    desk.until(desk.core.state.round.ends_s + 100.0)
    assert [holding.bundle.label for holding in desk.core.state.leases.values()][-1] == "p2"


@pytest.mark.parametrize("before_the_end_s", [9.0, 3.0])
def test_an_update_takes_no_gpus_away(desk_of: DeskOf, before_the_end_s: float) -> None:
    """Even if the round ends before a new allocation is there, the job stays on its GPUs."""
    desk = desk_of(node("n1", 2), node("k1", 2, "k80"))
    (lease,) = desk.run(gpt(plan(2, 1.9)))
    round_s = desk.core.state.settings.round_s
    desk.until(desk.core.state.round.ends_s - before_the_end_s)
    assert update(desk, plan(2, 1.9), plan(2, 0.5, "k80")).error == ""
    desk.until(desk.core.state.round.ends_s + round_s / 2)
    assert (desk.job("1").lease, desk.job("1").preemptions) == (lease, 0)


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": 1, "gpus_min": None, "gpus_max": None},
        {"worker_types": ("k80",), "gpus": 2, "gpus_min": None, "gpus_max": None},
    ],
)
def test_a_running_job_is_not_driven_from_its_place(
    desk_of: DeskOf, more: dict[str, Any], wording: Wording
) -> None:
    """New plans with a range or types without the present place are refused."""
    desk = desk_of(node("n1", 2), node("k1", 2, "k80"))
    desk.run(gpt(plan(1, 1.0), plan(2, 1.9)))
    reply = update(desk, plan(1, 1.0), plan(2, 0.5, "k80"), **more)
    assert reply.code == "refused"
    wording(reply.error)


def test_the_gpus_of_a_running_job_stay_in_their_groups(desk_of: DeskOf) -> None:
    """New plans may ask for smaller groups, but not for larger ones, which its GPUs do not form."""
    desk = desk_of(node("n1", 1), node("n2", 1), node("k1", 4, "k80"))
    (lease,) = desk.run(gpt(plan(2, 1.9)))
    new = plan(2, 1.9), plan(2, 0.1, "k80")
    reply = update(desk, *new, gpus_together=2)
    assert (reply.code, "gpus_together" in reply.error) == ("refused", True)
    assert update(desk, *new).error == ""
    assert desk.job("1").lease == lease


def test_a_running_job_neither_gets_plans_nor_loses_all(desk_of: DeskOf, wording: Wording) -> None:
    """It was started with a plan, or without; once it is held, both can change."""
    desk = desk_of(node("n1", 2))
    desk.run(job(gpus=2))
    reply = update(desk, plan(2, 1.9))
    assert reply.code == "refused"
    wording(reply.error)
    desk.tell(desk.now_s, JobCommand(call="c", job="1", action="hold"))
    desk.settle()
    assert update(desk, plan(2, 1.9)).error == ""
    assert desk.job("1").state is JobState.HELD


# Repeated submissions.


def test_a_key_is_for_what_the_user_asked(desk_of: DeskOf) -> None:
    """Plans that a client computed may differ when it repeats a submission: the cluster may have changed meanwhile."""
    desk = desk_of(node("n1", 4))
    assert desk.submit(gpt(plan(1, 1.0), plans_from='{"batch": 8}'), key="k") == ["1"]
    assert desk.submit(gpt(plan(1, 1.0), plan(2, 1.9), plans_from='{"batch": 8}'), key="k") == ["1"]
    desk.tell(
        desk.now_s, SubmitJobs(call="s", specs=(gpt(plan(1, 1.0), plans_from='{"batch": 9}'),), key="k")
    )
    assert desk.expect(Reply).code == "key_reused"
    desk.settle()
    # Plans from a file are a part of what the user asked for.
    assert desk.submit(gpt(plan(1, 1.0), plans_from=""), key="f") == ["2"]
    desk.tell(desk.now_s, SubmitJobs(call="s", specs=(gpt(plan(1, 2.0), plans_from=""),), key="f"))
    assert desk.expect(Reply).code == "key_reused"
    desk.settle()
