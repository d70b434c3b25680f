"""Nodes that are taken away after a notice: their jobs are asked in time to save and stop.

Rules: a job is asked as late as its checkpoint allows, with EARLY_S to spare; if the notice is too short, it is asked
at once. EARLY_S before the node leaves, all jobs that are still on it are asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.world import Change
from scheduler.sim.scenario.faults import NodeEvent

EARLY_S = 5.0


def requests_to_stop(
    events: Iterable[NodeEvent], checkpoints_s: Collection[float], leaves: Collection[str] = ("leave",)
) -> Iterator[Change]:
    """Yield the changes by which jobs are asked to save and stop, given the events of nodes in order of time.

    `checkpoints_s`: how long jobs of each type take to save. `leaves`: the names of events by which a node leaves.
    """
    notices: dict[str, float] = {}
    for event in events:
        if event.event == "notice":
            notices.setdefault(event.node, event.t_s)
        elif event.event in leaves and event.node in notices:
            notice_s = notices.pop(event.node)
            for checkpoint_s in sorted({0.0, *checkpoints_s}, reverse=True):
                vacate = partial(Machines.vacate, name=event.node, checkpoint_s=checkpoint_s)
                yield max(notice_s, event.t_s - checkpoint_s - EARLY_S), vacate
        elif event.event == "join":
            notices.pop(event.node, None)
