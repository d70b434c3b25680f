"""The refresh of automatic plans: what is asked of the scheduler, and what is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gavel.client.errors import Refused
from gavel.client.jobs.spec import JobSpec
from gavel.client.plans.planning import planned
from gavel.client.plans.refreshing import Refreshing
from gavel.client.reading import spec_from_proto, spec_to_proto
from gavel.client.results import Job, JobState, Node, Placement
from tests.client.plans.test_planning import GPT, node
from tests.support.wording import Wording


def job(spec: JobSpec, *nodes: Node, **changed: Any) -> Job:
    """Job 7 as the scheduler returns it, submitted when the cluster had these nodes."""
    (with_plans,), _ = planned([spec], nodes)
    values: dict[str, Any] = {
        "id": "7",
        "state": JobState.QUEUED,
        "why": "",
        "submitted": None,
        "started": None,
        "ended": None,
        "steps_done": 0.0,
        "steps_saved": 0.0,
        "run_s": 0.0,
        "attempt": 0,
        "failures": 0,
        "cost": 0.0,
        "node_failures": 0,
        "preemptions": 0,
        "blocked_by": (),
        "placement": None,
        "exit_code": None,
        "last_lines": "",
        "time_s": {},
        "array_index": None,
        "gpu_s": {},
        "nodes": (),
    }
    return Job(**{**values, "spec": spec_from_proto(spec_to_proto(with_plans)), **changed})


def refreshed(before: Job, *nodes: Node) -> tuple[Any, Refreshing]:
    """The changes that a refresh on these nodes asks for, and the refresh."""
    refreshing = Refreshing([before], nodes, None)
    return refreshing.update(before).request.changes, refreshing


def updated(before: Job, changes: Any) -> Job:
    """The job after the scheduler has made these changes."""
    fields = {
        name: getattr(changes, name) for name in ("gpus", "gpus_min", "gpus_max") if changes.HasField(name)
    }
    wire = spec_to_proto(before.spec)
    for name in ("gpus", "gpus_min", "gpus_max"):
        wire.ClearField(name)  # type: ignore[arg-type]
        if name in fields:
            setattr(wire, name, fields[name])
    del wire.plans[:]
    wire.plans.extend(changes.plans.plans)
    return replace(before, spec=spec_from_proto(wire))


def test_a_refresh_adds_plans_for_a_type_that_has_joined() -> None:
    """The range of a job with an open number of GPUs grows with its plans; old plans are as before."""
    before = job(GPT, node("n1", "v100", 2))
    changes, refreshing = refreshed(before, node("n1", "v100", 2), node("h1", "h100", 4))
    assert changes.plans_from == before.spec.plans_from
    assert (changes.gpus_min, changes.gpus_max) == (1, 4)
    refreshing.take(before, updated(before, changes))
    (result,) = refreshing.results
    assert {(change.outcome, change.worker_type) for change in result.changes} == {("added", "h100")}
    assert result.plans == len(changes.plans.plans)


def test_a_refresh_drops_and_changes_plans() -> None:
    """A type has left, and the nodes of another one have less memory now."""
    before = job(GPT, node("n1", "v100", 2), node("h1", "h100", 2))
    changes, refreshing = refreshed(before, node("n1", "v100", 2, memory_gb=6.0))
    refreshing.take(before, updated(before, changes))
    outcomes = {(change.outcome, change.worker_type) for change in refreshing.results[0].changes}
    assert ("dropped", "h100") in outcomes
    assert {kind for outcome, kind in outcomes if outcome == "changed"} <= {"v100"}
    assert (changes.gpus, changes.gpus_min, changes.gpus_max) == (2, 2, 2)


def test_a_kept_plan_is_reported() -> None:
    """The scheduler keeps the plan by which a job runs; its width stays in the range."""
    placement = Placement("h100", ("h1:0",), "", None, None, "running", "l", 0.0, "t1·p1·d1·b1")
    before = job(GPT, node("h1", "h100", 2))
    running = replace(before, state=JobState.RUNNING, placement=placement)
    changes, refreshing = refreshed(running, node("h1", "h100", 2, memory_gb=6.0))
    assert changes.gpus_min == 1
    after = updated(running, changes)
    kept = next(plan for plan in before.spec.plans if plan.gpus == 1)  # type: ignore[union-attr]
    after = replace(after, spec=replace(after.spec, plans=(*after.spec.plans, kept)))  # type: ignore[misc]
    refreshing.take(running, after)
    assert ("kept", 1) in {(change.outcome, change.gpus) for change in refreshing.results[0].changes}


@pytest.mark.parametrize(
    ("request_fields", "later", "expected"),
    [
        # The user gave a range and keeps it.
        ({"gpus": 2, "gpus_min": 2, "gpus_max": 8}, {}, (2, 2, 8)),
        ({"gpus": 4}, {}, (4, 0, 0)),
        # The user left the number open and gave a range later.
        ({}, {"gpus": 2, "gpus_min": None, "gpus_max": None}, (2, 0, 0)),
    ],
)
def test_a_refresh_keeps_the_range_of_the_user(
    request_fields: dict[str, Any], later: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    """Only a number that was left open follows the plans. Plans outside of a later range are kept for a wider one."""
    before = job(replace(GPT, **request_fields), node("n1", "v100", 4))
    before = replace(before, spec=replace(before.spec, **later))
    changes, _ = refreshed(before, node("n1", "v100", 4))
    assert (changes.gpus, changes.gpus_min, changes.gpus_max) == expected
    widths = {plan.gpus for plan in changes.plans.plans}
    assert widths == {plan.gpus for plan in before.spec.plans}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changed",
    [
        {"state": JobState.COMPLETED},
        {"plans_from": ""},
        {"plans_from": "no JSON"},
        {"plans_from": "[]"},
        {"plans_from": "[" * 100_000},
        {
            "plans_from": '{"model": "/etc/passwd", "batch": 8, "max_tensor": null, "schedule": "", "gpus": null}'
        },
        {"plans_from": '{"model": {}, "batch": "x", "max_tensor": null, "schedule": "", "gpus": null}'},
    ],
)
def test_jobs_without_automatic_plans_are_refused(changed: Mapping[str, Any], wording: Wording) -> None:
    """So are jobs that have ended, and texts of another release."""
    before = job(GPT, node("n1", "v100", 2))
    if "state" in changed:
        before = replace(before, **changed)
    else:
        before = replace(before, spec=replace(before.spec, **changed))
    with pytest.raises(Refused) as error:
        Refreshing([before], [node("n1", "v100", 2)], None)
    wording(str(error.value))
