"""The core records starts that are reported in a row as one fact, in order with the other facts."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.facts import LeaseClosed, LeaseRecalled, LeasesStarted, NodeMoved
from scheduler.core.messages import NodeReport, NodeSilent
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def test_starts_of_a_batch_are_one_fact(desk_of: DeskOf) -> None:
    """Starts reported together, as at a boundary, make one fact; a repeated report is in it once."""
    desk = desk_of(node(), node("n2"))
    desk.submit(job(nodes=("n1",)), job(nodes=("n2",)))
    desk.until(8)
    starts = [NodeReport(node=f"n{i}", generation=1, started=(str(i),)) for i in (1, 2)]
    desk.tell(9, *starts, starts[0])
    desk.expect(LeasesStarted, leases=("1", "2"))
    desk.all_claimed()
    assert [desk.holding(lease).started_s for lease in ("1", "2")] == [9, 9]


def test_a_start_is_recorded_before_later_events(desk_of: DeskOf) -> None:
    """An exit in the same report and a later message of the batch are handled after the start (P3)."""
    desk = desk_of(node(), node("n2"))
    desk.submit(job(nodes=("n1",)), job(nodes=("n2",)))
    desk.until(8)
    start_and_exit = NodeReport(
        node="n1", generation=1, started=("1",), exits=(exited("1", "finished", 1000.0),)
    )
    facts = desk.tell(
        9, start_and_exit, NodeReport(node="n2", generation=1, started=("2",)), NodeSilent(node="n2")
    ).facts
    desk.settle()
    assert [type(fact) for fact in facts] == [
        LeasesStarted,
        LeaseClosed,
        LeasesStarted,
        NodeMoved,
        LeaseRecalled,
    ]
    assert [fact.leases for fact in facts if isinstance(fact, LeasesStarted)] == [("1",), ("2",)]
