"""Schedules of faults: events of nodes in order of time, drawn from a seed or read from a file.

Rules: a schedule is a list in order of time, known before the run; each node has its own random stream, so that adding
a node does not change the others' schedules.

    crash   the machine dies            repair  it is back, empty
    cut     its link is gone            mend    the link is back
    notice  it will be taken away       leave   it is taken away         join  it is (again) there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, cast, get_args

from scheduler.core.messages import Message, NodeCommand
from scheduler.model.cluster import NodeSpec
from scheduler.sim.engine.machines import Machines
from traces.documents import Layout, read_text, rows
from traces.errors import nearest, show
from traces.time_series import CapacityChange

What = Literal["crash", "repair", "cut", "mend", "notice", "leave", "join"]
# The user recorded for draining a node that will be taken away.
SPOT = "spot"
LAYOUT = Layout(needed=("t_s", "node", "event"))


class NodeEvent(NamedTuple):
    """An event of a node."""

    t_s: float
    node: str
    event: What


def failures(
    nodes: Iterable[str],
    *,
    mtbf_s: float,
    mttr_s: float,
    until_s: float,
    seed: int = 0,
    kind: Literal["crash", "cut"] = "crash",
) -> list[NodeEvent]:
    """Let every node fail and come back after exponential times with these means, until `until_s`."""
    back: What = "repair" if kind == "crash" else "mend"
    events = []
    for node in nodes:
        luck = Random(f"{seed}/{kind}/{node}")
        at_s = luck.expovariate(1 / mtbf_s)
        while at_s < until_s:
            again_s = at_s + luck.expovariate(1 / mttr_s)
            events += [NodeEvent(at_s, node, kind), NodeEvent(again_s, node, back)]
            at_s = again_s + luck.expovariate(1 / mtbf_s)
    return sorted(events)


def capacity(
    changes: Iterable[CapacityChange], pool: Sequence[NodeSpec], notice_s: float = 0.0
) -> list[NodeEvent]:
    """Let nodes of the pool come and go so that each type has as many GPUs as the changes say.

    A type starts with nothing. Nodes come in the order of the pool and go in the reverse; if whole nodes do not add up
    to a number of GPUs, it is rounded down. Those that go get a notice `notice_s` before.
    """
    events: list[NodeEvent] = []
    here: dict[str, list[NodeSpec]] = {}
    for change in sorted(changes, key=lambda change: (change.t_s, change.worker_type)):
        present = here.setdefault(change.worker_type, [])
        wanted = _first_that_fit(
            [spec for spec in pool if spec.worker_type == change.worker_type], change.gpus
        )
        for spec in reversed(present[len(wanted) :]):
            if notice_s > 0:
                events.append(NodeEvent(max(0.0, change.t_s - notice_s), spec.name, "notice"))
            events.append(NodeEvent(change.t_s, spec.name, "leave"))
        events += [NodeEvent(change.t_s, spec.name, "join") for spec in wanted[len(present) :]]
        here[change.worker_type] = wanted
    return sorted(events, key=lambda event: event.t_s)


def _first_that_fit(nodes: list[NodeSpec], gpus: int) -> list[NodeSpec]:
    fitting: list[NodeSpec] = []
    for spec in nodes:
        if sum(node.gpus for node in fitting) + spec.gpus > gpus:
            break
        fitting.append(spec)
    return fitting


def read_events(
    path: str | Path, nodes: Iterable[str] = (), note: Callable[[str], None] = lambda text: None
) -> list[NodeEvent]:
    """Read node events from a CSV file with the columns t_s, node, event; `nodes`: refuse any other.

    Lines may be in any order; `note` is called if that is not the order of time.
    """
    path, known = Path(path), sorted(set(nodes))
    events: list[NodeEvent] = []
    in_order = True
    for row in rows(path, read_text(path), LAYOUT):
        at_s, node, event = row.amount("t_s"), row.word("node"), row.word("event")
        if known and node not in known:
            row.refuse("node", f"there is no node {show(node)}", nearest(node, known))
        if event not in get_args(What):
            row.refuse("event", f"is {show(event)}", nearest(event, get_args(What)))
        if events and at_s < events[-1].t_s and in_order:
            in_order = False
            problem = f"line {row.line} is earlier than the one above"
            note(f"{path}: {problem}: what counts is the time, not the line")
        events.append(NodeEvent(at_s, node, cast(What, event)))
    return sorted(events, key=lambda event: event.t_s)


def strike(machines: Machines, now_s: float, event: NodeEvent, pool: Mapping[str, NodeSpec]) -> list[Message]:
    """Let an event happen, and return the messages to the scheduler. `pool` describes nodes that may join."""
    match event.event:
        case "crash" | "leave":
            return machines.crash(now_s, event.node)
        case "repair":
            return machines.repair(now_s, event.node)
        case "cut":
            return machines.cut(now_s, event.node)
        case "mend":
            return machines.mend(now_s, event.node)
        case "notice":
            return [NodeCommand(node=event.node, action="drain", user=SPOT)]
        case "join":
            # The node may have been draining when it left.
            resume = NodeCommand(node=event.node, action="resume", user=SPOT)
            return [*machines.join(now_s, pool[event.node]), resume]
