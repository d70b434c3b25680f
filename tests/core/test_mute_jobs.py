"""A job that tells no steps is not moved in order to measure it: nothing would be learnt, and it may lose its work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scheduler.core.messages import Progress
from scheduler.model.lease import Holding, node_of
from tests.support.desk import Desk, exited, job, node


def moves(tells_steps: bool, rounds: int = 12) -> int:
    """How often an unknown kind of job changes places, alone on two types."""
    desk = Desk(node("n1", 1), node("n2", 1, "k80"), start_patience_s=1e6)
    desk.submit(job(job_type="nobody knows it", steps=None))
    desk.until(20)
    seen: list[str] = []
    for _ in range(rounds):
        for stopping in (True, False):  # who goes makes room for who comes
            for holding in list(desk.core.state.leases.values()):
                if (holding.phase == "stopping") is stopping:
                    said(desk, holding, tells_steps)
                    if not stopping:
                        seen.append(holding.lease.gpus[0])
        desk.until(desk.core.state.round.ends_s + 10)
    assert len(seen) >= rounds
    return sum(a != b for a, b in pairwise(seen))


def said(desk: Desk, holding: Holding, tells_steps: bool) -> None:
    """Its node says what has come of a lease."""
    lease, ran_s = holding.lease.id, desk.now_s - holding.granted_s
    steps = ran_s if tells_steps else 0.0
    if holding.phase == "stopping":
        end = exited(lease, steps=steps, stepping_s=steps, ran_s=ran_s)
        desk.report(node_of(holding.lease.gpus[0]), exits=(end,))
    else:
        made = (Progress(lease, steps, 0.0, steps),) if tells_steps else ()
        desk.report(node_of(holding.lease.gpus[0]), started=(lease,), progress=made)
    desk.settle()


@pytest.mark.parametrize(("tells_steps", "most"), [(False, 1), (True, 9)])
def test_moves(tells_steps: bool, most: int):
    """At most for a turn of another type; who tells steps may be tried on each."""
    assert moves(tells_steps) <= most
    assert moves(True) > moves(False)
