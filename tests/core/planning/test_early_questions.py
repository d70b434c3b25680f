"""First come, first served, strictly: idle GPUs are the next one's at once, not after the round."""

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


def one_done(desk_of: DeskOf, **changed: object) -> Desk:
    """One GPU under fifo, three jobs; the first is done after a minute and a half."""
    desk = desk_of(node("n1", 1), policy="fifo", **changed)
    (lease,) = desk.run(job())
    desk.submit(job(), job())
    desk.until(90.0)
    assert desk.job("2").lease is None
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    return desk


def test_the_next_in_line_has_the_gpu_soon(desk_of: DeskOf) -> None:
    """It would wait for the boundary otherwise, four minutes away, beside an idle GPU."""
    desk = one_done(desk_of)
    desk.until(90.0 + EARLY_S)
    lease = desk.job("2").lease
    assert lease is not None
    assert desk.holding(lease).granted_s <= 90.0 + EARLY_S
    assert desk.job("3").lease is None


def test_questions_in_mid_round_are_seconds_apart(desk_of: DeskOf) -> None:
    """Many short jobs, one after the other, are no reason to ask without end."""
    desk = one_done(desk_of)
    asked_s = []
    for second in range(91, 200):
        before = desk.core.state.asked.number
        desk.until(float(second))
        asked_s += [float(second)] * (desk.core.state.asked.number - before)
        running = [h for h in desk.core.state.leases.values() if h.started_s is None]
        for holding in running:
            desk.report(started=(holding.lease.id,), exits=(exited(holding.lease.id, "finished", 1000.0),))
            desk.settle()
            desk.submit(job())
    assert len(asked_s) > 5
    assert all(b - a >= EARLY_S - 1.0 for a, b in pairwise(asked_s))


def test_nobody_is_asked_for_jobs_that_can_run_nowhere(desk_of: DeskOf) -> None:
    """No answer could give the idle GPU to a job that waits for a type whose only node takes no work."""
    desk = desk_of(node("n1", 1), node("k1", 1, "k80"), policy="fifo")
    desk.tell(0, NodeCommand(node="k1", action="drain"))
    desk.settle()
    (lease,) = desk.run(job(worker_types=("v100",)))
    desk.submit(job(worker_types=("k80",)))
    desk.until(90.0)
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    asked = desk.core.state.asked.number
    desk.until(300.0)
    assert desk.core.state.asked.number == asked


def test_a_solver_in_trouble_is_left_alone_until_the_boundary(desk_of: DeskOf) -> None:
    """Its last answer was that it has none: it is not asked every few seconds."""
    desk = desk_of(node("n1", 1), policy="fifo")
    (lease,) = desk.run(job())
    desk.submit(job(), job())
    asked = desk.core.state.asked.number
    desk.until(80.0)
    apply(desk.core.state, 80.0, AllocationAsked(number=asked + 1))
    apply(desk.core.state, 81.0, AllocationFailed(number=asked + 1, why="no time"))
    desk.until(90.0)
    desk.report(exits=(exited(lease, "finished", 1000.0),))
    desk.settle()
    desk.until(300.0)
    assert desk.core.state.asked.number == asked + 1
    desk.until(380.0)
    assert desk.job("2").lease is not None


def test_the_settings_say_how_often_shares_may_change(desk_of: DeskOf) -> None:
    """min_reallocation_s holds in mid-round, too."""
    desk = one_done(desk_of, min_reallocation_s=200.0)
    asked = desk.core.state.asked
    desk.until(asked.at_s + 190.0)
    assert desk.job("2").lease is None
    desk.until(asked.at_s + 201.0)
    assert desk.job("2").lease is not None


@pytest.mark.parametrize("changed", [{"fill_mid_round": False}, {"policy": "las"}])
def test_nobody_else_asks_in_mid_round(desk_of: DeskOf, changed: dict[str, object]) -> None:
    """Not where nothing happens in mid-round (as in comparisons), nor where idle GPUs may be filled anyhow."""
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
    """The answer cannot help it; nothing is asked again until something changes."""
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
