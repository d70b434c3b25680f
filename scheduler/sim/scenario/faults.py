"""Schedules of faults: events of nodes in order of time, drawn from a seed or read from a file.

Rules: a schedule is a list in order of time that is known before the run; each node has luck of its own, so
that adding a node leaves the others' schedules as they were.

    crash   the machine dies            repair  it is back, empty
    cut     its link is gone            mend    the link is back
    notice  it will be taken away       leave   it is taken away         join  it is (again) there
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, Protocol, cast, get_args

from scheduler.core.messages import Message, NodeCommand
from scheduler.model.cluster import NodeSpec
from traces.documents import Layout, read_text, rows
from traces.errors import BadWorkload, nearest, show

What = Literal["crash", "repair", "cut", "mend", "notice", "leave", "join"]
# The user in whose name a node is drained that will be taken away.
SPOT = "spot"
LAYOUT = Layout(needed=("t_s", "node", "event"))


class NodeEvent(NamedTuple):
    """Something happens to a node."""

    t_s: float
    node: str
    event: What


class CapacityStep(NamedTuple):
    """From then on there are so many GPUs of a type; those that go are told `notice_s` before."""

    t_s: float
    worker_type: str
    gpus: int
    notice_s: float = 0.0


class Struck(Protocol):
    """The machines that events happen to: Machines, or Machines behind a faulty link."""

    def join(self, now_s: float, spec: NodeSpec) -> list[Message]:
        """A node joins."""

    def crash(self, now_s: float, name: str) -> list[Message]:
        """The node dies."""

    def repair(self, now_s: float, name: str) -> list[Message]:
        """The node is back."""

    def cut(self, now_s: float, name: str) -> list[Message]:
        """The node's link is gone."""

    def mend(self, now_s: float, name: str) -> list[Message]:
        """The node's link is back."""


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
    for name, value in (("mtbf_s", mtbf_s), ("mttr_s", mttr_s)):
        if not 0 < value < math.inf:
            raise BadWorkload(f"is {value}", field=name, hint="give seconds above 0")
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


def capacity(steps: Iterable[CapacityStep], pool: Sequence[NodeSpec]) -> list[NodeEvent]:
    """Let nodes of the pool come and go so that each type has as many GPUs as the steps say.

    A type starts with nothing. Nodes come in the order of the pool and go in the reverse; where whole nodes
    do not add up to a number of GPUs, it is rounded down.
    """
    events: list[NodeEvent] = []
    here: dict[str, list[NodeSpec]] = {}
    for step in sorted(steps):
        kinds = dict.fromkeys(spec.worker_type for spec in pool)
        if step.worker_type not in kinds:
            hint = nearest(step.worker_type, kinds)
            raise BadWorkload(
                f"no node of the pool is {show(step.worker_type)}", field="worker_type", hint=hint
            )
        if not 0 <= step.t_s < math.inf or step.notice_s < 0 or step.gpus < 0:
            raise BadWorkload(f"{step} cannot be", hint="times and GPUs are 0 or more")
        present = here.setdefault(step.worker_type, [])
        wanted = _first_that_fit([spec for spec in pool if spec.worker_type == step.worker_type], step)
        for spec in reversed(present[len(wanted) :]):
            if step.notice_s > 0:
                events.append(NodeEvent(max(0.0, step.t_s - step.notice_s), spec.name, "notice"))
            events.append(NodeEvent(step.t_s, spec.name, "leave"))
        events += [NodeEvent(step.t_s, spec.name, "join") for spec in wanted[len(present) :]]
        here[step.worker_type] = wanted
    return sorted(events, key=lambda event: event.t_s)


def _first_that_fit(nodes: list[NodeSpec], step: CapacityStep) -> list[NodeSpec]:
    if step.gpus > sum(spec.gpus for spec in nodes):
        most = sum(spec.gpus for spec in nodes)
        raise BadWorkload(
            f"{step.gpus} GPUs of {show(step.worker_type)} at {step.t_s} s", hint=f"the pool has {most}"
        )
    fitting: list[NodeSpec] = []
    for spec in nodes:
        if sum(node.gpus for node in fitting) + spec.gpus > step.gpus:
            break
        fitting.append(spec)
    return fitting


def read_events(
    path: str | Path, nodes: Iterable[str] = (), note: Callable[[str], None] = lambda text: None
) -> list[NodeEvent]:
    """Read node events from a CSV file with the columns t_s, node, event; `nodes`: refuse any other.

    Lines may stand in any order; `note` is called where that is not the order of time.
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


def strike(
    machines: Struck, now_s: float, event: NodeEvent, pool: Mapping[str, NodeSpec] | None = None
) -> list[Message]:
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
            if pool is None or event.node not in pool:
                raise LookupError(f"node {event.node!r} joins, and is not in the pool")
            # The node may have been draining when it left.
            resume = NodeCommand(node=event.node, action="resume", user=SPOT)
            return [*machines.join(now_s, pool[event.node]), resume]
