"""When the agents of simulated nodes want a Tick."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from scheduler.sim.engine.node import Node

INF = math.inf


class Wakes:
    """Nodes by the time of their wake. Renewals move ends, so most wakes turn out to be early and are put off."""

    __slots__ = ("_nodes", "_times")

    def __init__(self) -> None:
        self._nodes: dict[float, list[Node]] = {}  # void is who has another `wake_s` by now
        self._times: list[float] = []

    def put(self, at_s: float, node: Node) -> None:
        """Wake it then, and not at any other time."""
        node.wake_s = at_s
        self._at(at_s).append(node)

    def next_s(self) -> float:
        """The first wake that an agent really needs."""
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
                if again_s != later_s:  # nearly all are put off to the same time
                    later_s, later = again_s, self._at(again_s)
                node.wake_s = again_s
                later.append(node)
            del self._nodes[at_s]
            heappop(times)
        return INF

    def take(self, now_s: float) -> list[Node]:
        """Those that need a Tick now, which is their next wake."""
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
        """Who is woken then: the list that is kept, but for those who are never woken."""
        nodes = self._nodes.get(at_s)
        if nodes is None:
            nodes = []
            if at_s < INF:
                self._nodes[at_s] = nodes
                heappush(self._times, at_s)
        return nodes
