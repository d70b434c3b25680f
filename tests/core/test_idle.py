"""Idle GPUs: what agents report becomes a fact, and the job moves as the operator's setting says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import SendLeases
from scheduler.core.facts import GpusIdled, JobMoved, LeaseRecalled
from scheduler.core.messages import Configure
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobState
from scheduler.model.lease import Holding
from scheduler.model.settings import Settings
from tests.support.desk import Desk, job, node

DeskOf = Callable[..., Desk]


def holding(desk: Desk, lease: str) -> Holding:
    """Return a lease of the state."""
    return desk.core.state.leases[lease]


def test_idle_gpus_are_a_fact_until_they_are_in_use_again(desk_of: DeskOf) -> None:
    """A fact when they have been idle long enough, and one when they are in use again; no others."""
    desk = desk_of(node(), idle_after_s=600.0)
    (lease,) = desk.run(job())
    started_s = desk.now_s
    desk.until(desk.now_s + 1000.0)
    desk.report(idle_s={lease: 599.0})
    assert holding(desk, lease).idle_began_s is None
    desk.report(idle_s={lease: 601.0})
    assert desk.expect(GpusIdled) == GpusIdled(node="n1", lease=lease, since_s=desk.now_s - 601.0)
    assert holding(desk, lease).idle_began_s == desk.now_s - 601.0
    desk.report(idle_s={lease: 1e9})
    desk.report()
    desk.until(desk.now_s + 50.0)
    desk.report(idle_s={})
    assert desk.expect(GpusIdled) == GpusIdled(node="n1", lease=lease)
    assert (holding(desk, lease).idle_began_s, holding(desk, lease).was_idle_s) == (None, 651.0)
    assert desk.core.state.jobs["1"].state is JobState.RUNNING
    # Never since before the start.
    desk.report(idle_s={lease: 1e9})
    assert desk.expect(GpusIdled).since_s == started_s


@pytest.mark.parametrize(
    ("settings", "spec", "idle_s"),
    [
        ({"idle_after_s": 0.0}, {}, 1e9),
        ({}, {"idle_ok": True}, 1e9),
        ({}, {}, math.nan),
        ({}, {}, -1.0),
    ],
)
def test_what_is_no_idle_lease(
    desk_of: DeskOf, settings: dict[str, Any], spec: dict[str, Any], idle_s: float
) -> None:
    """If the operator or the job says so, or if the report makes no sense; nor are leases of others."""
    desk = desk_of(node(), **settings)
    (lease,) = desk.run(job(**spec))
    desk.report(idle_s={lease: idle_s, "99": 1e9})
    assert holding(desk, lease).idle_since == {}


@pytest.mark.parametrize(("action", "state"), [("hold", JobState.HELD), ("requeue", JobState.QUEUED)])
def test_an_idle_job_is_moved_if_the_operator_wants_that(
    desk_of: DeskOf, action: str, state: JobState
) -> None:
    """It is asked to stop, with the reason; this is no preemption."""
    desk = desk_of(node(), idle_action=action)
    (lease,) = desk.run(job())
    desk.until(desk.now_s + 2000.0)
    desk.report(idle_s={lease: 1800.0})
    desk.expect(GpusIdled)
    moved = desk.expect(JobMoved)
    assert (moved.job, moved.move, moved.by) == ("1", action, "")
    assert desk.expect(LeaseRecalled) == LeaseRecalled(lease=lease, why=moved.why)
    desk.expect(SendLeases)
    desk.settle()
    assert desk.core.state.jobs["1"].state is state
    assert not holding(desk, lease).unasked


def test_a_gang_is_idle_if_all_its_nodes_are(desk_of: DeskOf) -> None:
    """While one of its nodes works, the others may wait for it."""
    desk = desk_of(node("n1"), node("n2"), idle_action="hold")
    (lease,) = desk.run(job(gpus=4))
    desk.until(desk.now_s + 4000.0)
    desk.report("n1", idle_s={lease: 3000.0})
    desk.expect(GpusIdled)
    assert holding(desk, lease).idle_began_s is None
    desk.report("n1", idle_s={})
    desk.expect(GpusIdled)
    desk.report("n2", idle_s={lease: 2500.0})
    desk.expect(GpusIdled)
    assert holding(desk, lease).was_idle_s == 0.0
    desk.report("n1", idle_s={lease: 2000.0})
    desk.expect(GpusIdled)
    assert desk.expect(JobMoved).move == "hold"
    assert holding(desk, lease).idle_began_s == desk.now_s - 2000.0
    desk.settle()


def test_unknown_actions_are_refused() -> None:
    """The setting has three values."""
    with pytest.raises(InvalidSpec) as error:
        Settings(idle_action="kill").checked()
    assert error.value.field == "idle_action"
    assert Configure(settings=Settings(idle_action="requeue").checked())
