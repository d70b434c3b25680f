"""Deadlines: `explain` reports whether one is near, kept or missed; one that cannot be kept harms no other job."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.core.effects import Solve
from scheduler.core.messages import JobCommand, Woke
from scheduler.explain import explain
from scheduler.model.jobs import JobState
from scheduler.solving import answer
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording


def running(**fields: float) -> tuple[Desk, str]:
    """Return a desk with a job that runs at ten steps per second, and its lease."""
    desk = Desk(node())
    (lease,) = desk.run(job(rates={"v100": 10.0}, **fields))
    desk.report(started=(lease,))
    desk.settle()
    return desk, lease


@pytest.mark.parametrize(
    ("deadline_s", "after_s", "named"),
    [
        (7200.0, 0.0, "in 2 h."),
        (7200.0, 3600.0, "in 1 h."),
        (500.0, 60.0, "in 7 min,"),
        (500.0, 560.0, "1 min ago."),
    ],
)
def test_a_job_that_runs(deadline_s: float, after_s: float, named: str, wording: Wording) -> None:
    """Ten thousand steps take 1,000 s, so the deadline is kept, too near, or missed."""
    desk, _ = running(steps=10_000.0, deadline_s=deadline_s)
    submitted_s = desk.job("1").submitted_s
    text = explain(desk.core.state, "1", submitted_s + after_s).text
    assert named in text
    wording(text)


@pytest.mark.parametrize(
    ("deadline_s", "named"),
    [(300.0, "with 4 min"), (30.0, "by 30 s")],
)
def test_a_job_that_is_done(deadline_s: float, named: str, wording: Wording) -> None:
    """The job ends after a minute, before or after its deadline."""
    desk, lease = running(steps=100.0, deadline_s=deadline_s)
    desk.until(desk.job("1").submitted_s + 60.0)
    desk.report(exits=(exited(lease, "finished", 100.0),))
    assert desk.job("1").state == JobState.COMPLETED
    text = explain(desk.core.state, "1").text
    assert named in text
    wording(text)


def test_a_waiting_job_that_cannot_keep_its_deadline(wording: Wording) -> None:
    """A waiting job has the warning even without a share; the explanation of a cancelled job has no deadline."""
    desk = Desk(node())
    desk.submit(job(rates={"v100": 10.0}, steps=1e6, deadline_s=60.0))
    text = explain(desk.core.state, "1", desk.now_s).text
    assert "in 1 min," in text
    assert "1 d 4 h." in text
    wording(text)
    desk.tell(desk.now_s, JobCommand(job="1", action="cancel"))
    assert "deadline" not in explain(desk.core.state, "1").text


def test_a_deadline_without_steps_is_not_counted() -> None:
    """A policy that keeps deadlines needs the steps; a job without them does not make the problem unsolvable."""
    desk = Desk(node(), policy="max_throughput")
    desk.submit(job(deadline_s=100.0, steps=None), job(deadline_s=5000.0, steps=100.0))
    desk.settle()
    desk.tell(desk.now_s, Woke(what="tick"))
    question = desk.expect(Solve)
    assert np.isinf(question.problem.jobs.deadline_s[0])
    assert math.isfinite(question.problem.jobs.deadline_s[1])
    assert not answer(question).failed
