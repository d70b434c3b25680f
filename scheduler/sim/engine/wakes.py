"""The times at which the agents of simulated nodes need a Tick."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from scheduler.sim.engine.node import Node

INF = math.inf


class Wakes:
    """Nodes by the time of their wake. Renewals extend leases, so most wakes come too early and are put off."""

    __slots__ = ("_nodes", "_times")

    def __init__(self) -> None:
        # The nodes to wake, by time, and a heap of these times. An entry is void if the node's `wake_s` differs.
        self._nodes: dict[float, list[Node]] = {}
        self._times: list[float] = []

    def put(self, at_s: float, node: Node) -> None:
        """Wake the node at this time. This replaces the time set before."""
        node.wake_s = at_s
        self._at(at_s).append(node)

    def next_s(self) -> float:
        """Put off the wakes that come too early. Return the time of the first wake that is needed, or inf."""
        times = self._times
        later_s: float | None = None
        later: list[Node] = []
        while times:
            at_s = times[0]
            nodes = self._nodes[at_s]
            while nodes:
                node = nodes.pop()
                if node.wake_s != at_s:
                    continue
                again_s = node.core.put_off_tick(at_s)
                if again_s <= at_s:
                    nodes.append(node)
                    return at_s
                # Nearly all wakes are put off to the same time, so the list of that time is looked up only once.
                if again_s != later_s:
                    later_s, later = again_s, self._at(again_s)
                node.wake_s = again_s
                later.append(node)
            del self._nodes[at_s]
            heappop(times)
        return INF

    def take(self, now_s: float) -> list[Node]:
        """Remove and return the nodes that need a Tick now. `now_s` must be the answer of `next_s`."""
        heappop(self._times)
        needed = []
        for node in self._nodes.pop(now_s):
            if node.wake_s == now_s:
                again_s = node.core.put_off_tick(now_s)
                if again_s <= now_s:
                    node.wake_s = INF
                    needed.append(node)
                else:
                    self.put(again_s, node)
        return needed

    def _at(self, at_s: float) -> list[Node]:
        """Return the list of nodes to wake at this time, for appending. The list for inf is not kept."""
        nodes = self._nodes.get(at_s)
        if nodes is None:
            nodes = []
            if at_s < INF:
                self._nodes[at_s] = nodes
                heappush(self._times, at_s)
        return nodes
