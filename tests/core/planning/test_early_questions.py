"""First come, first served, strictly: an idle GPU goes to the next job within seconds, not at the boundary."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from scheduler.core.apply import apply
from scheduler.core.facts import AllocationAsked, AllocationFailed
from scheduler.core.messages import NodeCommand, Woke
from scheduler.core.on_rounds import EARLY_S
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def after_the_first_job(desk_of: DeskOf, **changed: object) -> Desk:
    """Return a desk with one GPU under fifo and three jobs, of which the first finished after a minute and a half."""
    desk = desk_of(node("n1", 1), policy="fifo", **changed)
    (lease,) = desk.run(job())
    desk.submit(job(), job())
    desk.until(90.0)
    assert desk.job("2").lease is None
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    return desk


def test_the_next_in_line_has_the_gpu_soon(desk_of: DeskOf) -> None:
    """The next job does not wait four minutes for the boundary beside an idle GPU."""
    desk = after_the_first_job(desk_of)
    desk.until(90.0 + EARLY_S)
    lease = desk.job("2").lease
    assert lease is not None
    assert desk.holding(lease).granted_s <= 90.0 + EARLY_S
    assert desk.job("3").lease is None


def test_questions_in_mid_round_are_seconds_apart(desk_of: DeskOf) -> None:
    """Many short jobs, one after the other, do not make the core ask without pause."""
    desk = after_the_first_job(desk_of)
    asked_s = []
    for second in range(91, 200):
        before = desk.core.state.asked.number
        desk.until(float(second))
        asked_s += [float(second)] * (desk.core.state.asked.number - before)
        not_started = [h for h in desk.core.state.leases.values() if h.started_s is None]
        for holding in not_started:
            desk.report(started=(holding.lease.id,), exits=(exited(holding.lease.id, "finished", 1000.0),))
            desk.settle()
            desk.submit(job())
    assert len(asked_s) > 5
    assert all(b - a >= EARLY_S - 1.0 for a, b in pairwise(asked_s))


def test_jobs_that_can_run_nowhere_lead_to_no_question(desk_of: DeskOf) -> None:
    """No answer could give the idle GPU to a job whose worker type has only a draining node."""
    desk = desk_of(node("n1", 1), node("k1", 1, "k80"), policy="fifo")
    desk.tell(0, NodeCommand(node="k1", action="drain"))
    desk.settle()
    (lease,) = desk.run(job(worker_types=("v100",)))
    desk.submit(job(worker_types=("k80",)))
    desk.until(90.0)
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    question_number = desk.core.state.asked.number
    desk.until(300.0)
    assert desk.core.state.asked.number == question_number


def test_after_a_failure_the_solver_is_asked_again_at_the_boundary(desk_of: DeskOf) -> None:
    """A solver whose last answer was a failure is not asked again in mid-round."""
    desk = desk_of(node("n1", 1), policy="fifo")
    (lease,) = desk.run(job())
    desk.submit(job(), job())
    question_number = desk.core.state.asked.number
    desk.until(80.0)
    apply(desk.core.state, 80.0, AllocationAsked(number=question_number + 1))
    apply(desk.core.state, 81.0, AllocationFailed(number=question_number + 1, why="no time"))
    desk.until(90.0)
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    desk.until(300.0)
    assert desk.core.state.asked.number == question_number + 1
    desk.until(380.0)
    assert desk.job("2").lease is not None


def test_min_reallocation_s_holds_in_mid_round(desk_of: DeskOf) -> None:
    """In mid-round, too, there are at least min_reallocation_s between two questions."""
    desk = after_the_first_job(desk_of, min_reallocation_s=200.0)
    question = desk.core.state.asked
    desk.until(question.at_s + 190.0)
    assert desk.job("2").lease is None
    desk.until(question.at_s + 201.0)
    assert desk.job("2").lease is not None


@pytest.mark.parametrize("changed", [{"fill_mid_round": False}, {"policy": "las"}])
def test_other_settings_lead_to_no_question_in_mid_round(desk_of: DeskOf, changed: dict[str, object]) -> None:
    """The core asks no question if nothing happens in mid-round (as in comparisons) or if fills need no shares."""
    desk = desk_of(node("n1", 1), **{"policy": "fifo", **changed})
    (lease,) = desk.run(job())
    desk.submit(job())
    desk.until(90.0)
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    before = desk.core.state.asked.number
    desk.until(300.0)
    assert desk.core.state.asked.number == before


def test_a_job_that_does_not_fit_is_asked_about_once(desk_of: DeskOf) -> None:
    """The answer cannot help the job, so no question is put again until something changes."""
    desk = desk_of(node("n1", 2), policy="fifo")
    desk.run(job(steps=1e6))
    desk.submit(job(gpus=2))
    desk.until(60.0)
    before = desk.core.state.asked.number
    for at_s in (100.0, 150.0, 200.0):
        desk.until(at_s)
        desk.tell(at_s, Woke(what="fill"))
        assert not [fact for fact in desk.facts if isinstance(fact, AllocationAsked)]
        desk.settle()
    assert desk.core.state.asked.number == before
