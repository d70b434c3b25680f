"""A job that reports no steps is not moved in order to be measured: that gives no rate, and may lose work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scheduler.core.messages import Progress
from scheduler.model.lease import Holding, node_of
from tests.support.desk import Desk, exited, job, node


def moves(reports_steps: bool, rounds: int = 12) -> int:
    """Return how often a job of an unknown type is moved, alone on two worker types."""
    desk = Desk(node("n1", 1), node("n2", 1, "k80"), start_patience_s=1e6)
    desk.submit(job(job_type="unknown", steps=None))
    desk.until(20)
    gpus: list[str] = []
    for _ in range(rounds):
        # Leases that stop come first, as they make room for the others.
        for stopping in (True, False):
            for holding in list(desk.core.state.leases.values()):
                if (holding.phase == "stopping") is stopping:
                    report(desk, holding, reports_steps)
                    if not stopping:
                        gpus.append(holding.lease.gpus[0])
        desk.until(desk.core.state.round.ends_s + 10)
    assert len(gpus) >= rounds
    return sum(a != b for a, b in pairwise(gpus))


def report(desk: Desk, holding: Holding, reports_steps: bool) -> None:
    """Report the exit of a stopping lease, or the progress of a running one."""
    lease, ran_s = holding.lease.id, desk.now_s - holding.granted_s
    steps = ran_s if reports_steps else 0.0
    if holding.phase == "stopping":
        end = exited(lease, steps=steps, stepping_s=steps, ran_s=ran_s)
        desk.report(node_of(holding.lease.gpus[0]), exits=(end,))
    else:
        progress = (Progress(lease, steps, 0.0, steps),) if reports_steps else ()
        desk.report(node_of(holding.lease.gpus[0]), started=(lease,), progress=progress)
    desk.settle()


@pytest.mark.parametrize(("reports_steps", "most"), [(False, 1), (True, 9)])
def test_moves(reports_steps: bool, most: int):
    """A mute job moves at most for a turn on another type; a job that reports steps may be tried on each."""
    assert moves(reports_steps) <= most
    assert moves(True) > moves(False)
