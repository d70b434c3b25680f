"""Schedules of faults: events of nodes, drawn from a seed or read from a file.

Rules: a schedule is a list in order of time, known before the run; each node has its own random stream, so that adding
a node does not change the others' schedules.

    crash   the node dies               repair  it is back, without jobs
    cut     its link breaks             mend    the link is back
    notice  it will be taken away       leave   it is taken away         join  it comes, or comes back
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

EventName = Literal["crash", "repair", "cut", "mend", "notice", "leave", "join"]
# The user recorded for draining a node that will be taken away.
SPOT = "spot"
LAYOUT = Layout(needed=("t_s", "node", "event"))


class NodeEvent(NamedTuple):
    """An event of a node."""

    t_s: float
    node: str
    event: EventName


def failures(
    nodes: Iterable[str],
    *,
    mtbf_s: float,
    mttr_s: float,
    until_s: float,
    seed: int = 0,
    kind: Literal["crash", "cut"] = "crash",
) -> list[NodeEvent]:
    """Return the failures of every node until `until_s`, and its returns, after exponential times with these means."""
    return_event: EventName = "repair" if kind == "crash" else "mend"
    events = []
    for node in nodes:
        random = Random(f"{seed}/{kind}/{node}")
        at_s = random.expovariate(1 / mtbf_s)
        while at_s < until_s:
            back_s = at_s + random.expovariate(1 / mttr_s)
            events += [NodeEvent(at_s, node, kind), NodeEvent(back_s, node, return_event)]
            at_s = back_s + random.expovariate(1 / mtbf_s)
    return sorted(events)


def capacity(
    changes: Iterable[CapacityChange], pool: Sequence[NodeSpec], notice_s: float = 0.0
) -> list[NodeEvent]:
    """Return the events by which nodes join and leave, so that each type has the GPUs that the changes state.

    A type starts with nothing. Nodes join in the order of the pool, and leave in reverse order after a notice of
    `notice_s`. If whole nodes do not add up to a stated number of GPUs, the number is rounded down.
    """
    events: list[NodeEvent] = []
    nodes_of: dict[str, list[NodeSpec]] = {}
    for change in sorted(changes, key=lambda change: (change.t_s, change.worker_type)):
        before = nodes_of.setdefault(change.worker_type, [])
        after = _first_that_fit(
            [spec for spec in pool if spec.worker_type == change.worker_type], change.gpus
        )
        for spec in reversed(before[len(after) :]):
            if notice_s > 0:
                events.append(NodeEvent(max(0.0, change.t_s - notice_s), spec.name, "notice"))
            events.append(NodeEvent(change.t_s, spec.name, "leave"))
        events += [NodeEvent(change.t_s, spec.name, "join") for spec in after[len(before) :]]
        nodes_of[change.worker_type] = after
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
    """Read node events from a CSV file with the columns t_s, node, event.

    Nodes that are not in `nodes` are refused, unless `nodes` is empty. Lines may be in any order; `note` is called with
    a text if they are not in order of time.
    """
    path, known = Path(path), sorted(set(nodes))
    events: list[NodeEvent] = []
    in_order = True
    for row in rows(path, read_text(path), LAYOUT):
        at_s, node, event = row.amount("t_s"), row.word("node"), row.word("event")
        if known and node not in known:
            row.refuse("node", f"there is no node {show(node)}", nearest(node, known))
        if event not in get_args(EventName):
            row.refuse("event", f"is {show(event)}", nearest(event, get_args(EventName)))
        if events and at_s < events[-1].t_s and in_order:
            in_order = False
            oddity = f"line {row.line} is earlier than the line above it"
            note(f"{path}: {oddity}; events happen in the order of their times")
        events.append(NodeEvent(at_s, node, cast(EventName, event)))
    return sorted(events, key=lambda event: event.t_s)


def strike(machines: Machines, now_s: float, event: NodeEvent, pool: Mapping[str, NodeSpec]) -> list[Message]:
    """Apply an event, and return the messages to the scheduler. `pool` has the specs of nodes that may join."""
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
