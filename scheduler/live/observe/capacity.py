"""The GPUs of each node over time, and how many of them were out of use. Pure, and a part of the ledger.

A GPU that a lease holds counts as held, whatever the state of its node. Of the others, those of nodes that cannot be
reached are unreachable; those of faulty nodes, and those with an error or with processes of ended jobs, are broken;
those of nodes that are being drained are drained; all others are free. A row states these numbers from its time on, so
a node needs a new one only when they change. On a node without trouble, leases come and go without rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.state import SchedulerState
from scheduler.live.observe.past_rows import PastNode, ms
from scheduler.model.cluster import FAULTY, SILENT, Node, NodeState
from scheduler.model.lease import Lease, nodes_of

NodeFact = f.NodeJoined | f.NodeMoved | f.NodeRemoved | f.GpusBroken | f.GpusWithheld


class Counts(NamedTuple):
    """The GPUs of a node, and those that no lease holds and none could."""

    worker_type: str
    gpus: int
    drained: int
    broken: int
    unreachable: int


class Capacity:
    """Counts the GPUs of each node."""

    def __init__(self, state: SchedulerState) -> None:
        """Begin with the nodes of this state; `hold` its leases next, and then call `settle`."""
        # A state with nodes only.
        self.cluster = SchedulerState()
        self.cluster.nodes = copy.deepcopy(state.nodes)
        self.cluster.reindex()
        # By node and id: the leases that hold GPUs there.
        self._held: dict[str, dict[str, Lease]] = {}
        self._counts: dict[str, Counts] = {}
        # Nodes whose counts may change as leases come and go, and those whose counts may have changed since `settle`.
        self._watched: set[str] = set()
        self.changed: set[str] = set(self.cluster.nodes)

    def hold(self, lease: Lease) -> None:
        """Count the GPUs of a lease as held."""
        for name in nodes_of(lease.gpus):
            self._held.setdefault(name, {})[lease.id] = lease
            if name in self._watched:
                self.changed.add(name)

    def let_go(self, lease: Lease) -> None:
        """Count the GPUs of a lease as held no longer."""
        for name in nodes_of(lease.gpus):
            del self._held[name][lease.id]
            if name in self._watched:
                self.changed.add(name)

    def partners(self, lease: Lease) -> list[str]:
        """Return the other leases that hold the GPUs of this one."""
        beside = self._held[nodes_of(lease.gpus)[0]]
        if len(beside) == 1:
            return []
        return [other.id for other in beside.values() if other is not lease and other.gpus[0] in lease.gpus]

    def change(self, now_s: float, fact: NodeFact) -> None:
        """Take in a fact about a node."""
        name = fact.spec.name if isinstance(fact, f.NodeJoined) else fact.node
        if isinstance(fact, f.NodeJoined) or name in self.cluster.nodes:
            apply(self.cluster, now_s, fact)
            self.changed.add(name)

    def settle(self, now_s: float, place: int) -> Iterator[PastNode]:
        """Yield a row for each node whose counts have changed. Places are counted from `place`."""
        for name in sorted(self.changed):
            counts = self._count(name)
            if counts != self._counts.get(name):
                self._counts[name] = counts
                yield PastNode(place, name, ms(now_s), *counts)
                place += 1
            if not counts.gpus:
                del self._counts[name]
        self.changed.clear()

    def _count(self, name: str) -> Counts:
        node = self.cluster.nodes.get(name)
        if node is None:
            self._watched.discard(name)
            return Counts("", 0, 0, 0, 0)
        is_healthy = node.state is NodeState.UP and not (node.broken or node.withheld)
        (self._watched.discard if is_healthy else self._watched.add)(name)
        if is_healthy:
            return Counts(node.spec.worker_type, node.spec.gpus, 0, 0, 0)
        return self._count_trouble(node)

    def _count_trouble(self, node: Node) -> Counts:
        spec = node.spec
        held = {gpu for lease in self._held.get(spec.name, {}).values() for gpu in lease.gpus}
        others = [gpu for gpu in node.every_gpu if gpu not in held]
        drained = broken = unreachable = 0
        if node.state in (SILENT, NodeState.LOST):
            unreachable = len(others)
        elif node.state is FAULTY:
            broken = len(others)
        else:
            whole = set(node.gpu_ids)
            broken = len([gpu for gpu in others if gpu not in whole])
            drained = len(others) - broken if node.state is NodeState.DRAINING else 0
        return Counts(spec.worker_type, spec.gpus, drained, broken, unreachable)
