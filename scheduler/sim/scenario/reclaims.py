"""Nodes that are taken away after a notice: their jobs are asked to save and leave in time.

Rules: a job is asked as late as its checkpoint allows, and EARLY_S sooner; at once where the notice is too short for
that. Jobs that are still starting up are asked last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from scheduler.core.messages import Message
from scheduler.sim.scenario.faults import NodeEvent

if TYPE_CHECKING:
    from scheduler.sim.engine.machines import Machines

EARLY_S = 5.0
Vacation = tuple[float, Callable[["Machines"], Callable[[float], Iterable[Message]]]]


def vacations(
    events: Iterable[NodeEvent], checkpoints_s: Collection[float], gone: Collection[str] = ("leave",)
) -> Iterator[Vacation]:
    """Yield when which jobs are asked, for events in order of time; `gone`: the events by which a node leaves."""
    notices: dict[str, float] = {}
    for event in events:
        if event.event == "notice":
            notices.setdefault(event.node, event.t_s)
        elif event.event in gone and event.node in notices:
            notice_s = notices.pop(event.node)
            for checkpoint_s in sorted({0.0, *checkpoints_s}, reverse=True):
                yield max(notice_s, event.t_s - checkpoint_s - EARLY_S), _vacated(event.node, checkpoint_s)
        elif event.event == "join":
            notices.pop(event.node, None)


def _vacated(node: str, checkpoint_s: float) -> Callable[[Machines], Callable[[float], Iterable[Message]]]:
    return lambda machines: lambda now_s: machines.vacate(now_s, node, checkpoint_s)
