"""A bad network between the scheduler and its nodes: messages get lost, come twice, or come late.

Hellos and silences always arrive, since links are connected and cut without messages. The same calls with the same
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message, NodeReport
from scheduler.model.cluster import NodeSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import Physics


class FaultyLink:
    """Machines behind a bad network, with the chance of each fault per message, and per node for renewals."""

    def __init__(
        self,
        machines: Machines,
        *,
        seed: int = 0,
        lost: float = 0.0,
        doubled: float = 0.0,
        late: float = 0.0,
        late_s: float = 10.0,
        until_s: float = float("inf"),
    ) -> None:
        """`late_s` is the longest delay of a message. From `until_s` on, the network has no faults."""
        self.machines = machines
        self.lost, self.doubled, self.late, self.late_s = lost, doubled, late, late_s
        self.until_s = until_s
        self.counts = {"lost": 0, "doubled": 0, "late": 0}
        self._luck = Random(seed)
        self._numbers = 0
        self._down: list[tuple[float, int, SendLeases | RenewLeases]] = []
        self._up: list[tuple[float, int, NodeReport]] = []

    @property
    def physics(self) -> Physics:
        """As Machines.physics."""
        return self.machines.physics

    def join(self, now_s: float, spec: NodeSpec) -> list[Message]:
        """As Machines.join."""
        return self._upward(now_s, self.machines.join(now_s, spec))

    def crash(self, now_s: float, name: str) -> list[Message]:
        """As Machines.crash."""
        return self._upward(now_s, self.machines.crash(now_s, name))

    def repair(self, now_s: float, name: str) -> list[Message]:
        """As Machines.repair."""
        return self._upward(now_s, self.machines.repair(now_s, name))

    def cut(self, now_s: float, name: str) -> list[Message]:
        """As Machines.cut."""
        return self._upward(now_s, self.machines.cut(now_s, name))

    def mend(self, now_s: float, name: str) -> list[Message]:
        """As Machines.mend."""
        return self._upward(now_s, self.machines.mend(now_s, name))

    def deliver(self, now_s: float, effect: SendLeases | RenewLeases) -> list[Message]:
        """As Machines.deliver, if the message arrives."""
        messages: list[Message] = []
        parts = [effect] if isinstance(effect, SendLeases) else _by_node(effect)
        for part in parts:
            for at_s in self._arrivals(now_s):
                if at_s > now_s:
                    self._numbers += 1
                    heappush(self._down, (at_s, self._numbers, part))
                else:
                    messages += self.machines.deliver(now_s, part)
        return self._upward(now_s, messages)

    def next_s(self) -> float:
        """As Machines.next_s, but including messages on their way."""
        waiting = [queue[0][0] for queue in (self._down, self._up) if queue]
        return min([self.machines.next_s(), *waiting])

    def advance(self, now_s: float) -> list[Message]:
        """As Machines.advance; late messages arrive."""
        messages = self._upward(now_s, self.machines.advance(now_s))
        while self._down and self._down[0][0] <= now_s:
            messages += self._upward(now_s, self.machines.deliver(now_s, heappop(self._down)[2]))
        while self._up and self._up[0][0] <= now_s:
            messages.append(heappop(self._up)[2])
        return messages

    def _upward(self, now_s: float, messages: list[Message]) -> list[Message]:
        arrived: list[Message] = []
        for message in messages:
            if not isinstance(message, NodeReport):
                arrived.append(message)
                continue
            for at_s in self._arrivals(now_s):
                if at_s > now_s:
                    self._numbers += 1
                    heappush(self._up, (at_s, self._numbers, message))
                else:
                    arrived.append(message)
        return arrived

    def _arrivals(self, now_s: float) -> list[float]:
        """Return when a message arrives: never, once, or twice."""
        if now_s >= self.until_s:
            return [now_s]
        if self._luck.random() < self.lost:
            self.counts["lost"] += 1
            return []
        copies = 1
        if self._luck.random() < self.doubled:
            self.counts["doubled"] += 1
            copies = 2
        arrivals = []
        for _ in range(copies):
            is_late = self._luck.random() < self.late
            self.counts["late"] += is_late
            arrivals.append(now_s + self._luck.uniform(0.0, self.late_s) if is_late else now_s)
        return arrivals


def _by_node(effect: RenewLeases) -> list[SendLeases | RenewLeases]:
    """Split renewals by node, so that each is lost or late by itself."""
    return [
        RenewLeases(effect.epoch, effect.round_number, effect.ends_s, {name: generation})
        for name, generation in effect.generations.items()
    ]
