"""One agent's stream, as the scheduler holds it: who it is, what it was heard to say, and what waits to be sent."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.failed_starts import is_news
from scheduler.core.messages import NodeReport
from scheduler.live.agents.outbox import Outbox
from scheduler.live.agents.shared_storage import PROOF_S
from scheduler.live.node_views import GpuSeen, NodeSeen
from scheduler.live.wire.agents import goodbye, gpus_of, peer_host
from scheduler.model.cluster import Node


class AgentClock:
    """What an agent's clock says at least, by what it wrote into its messages.

    The message that was on its way for the shortest time gives the best answer, and none a later one than the truth.
    Only of the last minutes, because no two clocks run alike.
    """

    SPAN_S = 60.0

    def __init__(self) -> None:
        self._best = (
            self._best_before
        ) = -math.inf  # of agent's time less ours, in this span and the one before
        self._since_s = -math.inf

    def said(self, sent_s: float, now_s: float) -> None:
        """A message that was sent then, by the agent's clock, has arrived now."""
        if not (math.isfinite(sent_s) and sent_s > 0):
            return
        if now_s - self._since_s > self.SPAN_S:
            self._best_before, self._best, self._since_s = self._best, -math.inf, now_s
        self._best = max(self._best, sent_s - now_s)

    def at(self, now_s: float) -> float:
        """What it says now, at the latest; 0 when nobody knows."""
        best = max(self._best, self._best_before)
        return max(now_s + best, 0.0) if best > -math.inf else 0.0


class NodeLink:
    """A link lives from its Hello until it is closed; `closed` then says why."""

    def __init__(self, hello: pb.Hello, peer: str, outbox: Outbox) -> None:
        self.hello, self.outbox = hello, outbox
        self.clock = AgentClock()
        self.name, self.incarnation = hello.node, hello.incarnation
        self.address = hello.address or peer_host(peer)
        self.heard_s = 0.0
        self.generation = -1  # of the newest set that it has said it knows
        self.storage = ""
        self.welcome = False
        self.failure = ""
        self.gpus: dict[int, GpuSeen] = gpus_of(hello)
        self.driver_version = hello.driver_version
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._checks: dict[str, asyncio.Future[pb.StorageChecked]] = {}
        self._heard = asyncio.Event()

    def hear(self, sent_s: float, now_s: float) -> None:
        """It said something, and when by its own clock."""
        self.heard_s = now_s
        self.clock.said(sent_s, now_s)
        self._heard.set()

    async def answers_within(self, wait_s: float) -> bool:
        """Whether it is alive: it is asked, and has so long to say anything."""
        self._heard.clear()
        self.outbox.put(pb.SchedulerMessage(alive=pb.Alive()))
        hearing: asyncio.Future[Any] = asyncio.ensure_future(self._heard.wait())
        closed: asyncio.Future[Any] = self.closed
        await asyncio.wait({hearing, closed}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        return self._heard.is_set() and not self.closed.done()

    def close(self, why: str) -> None:
        """Nothing more is read from it or written to it."""
        if not self.closed.done():
            self.closed.set_result(why)
        for waiting in self._checks.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError(f"{self.name}: {why}"))

    def fail(self, why: str) -> None:
        """Close the link because the scheduler failed on what came over it; the agent is told why, and may return."""
        self.failure = why
        self.close(why)

    def dismiss(self, reason: str, text: str) -> None:
        """Say goodbye. The writer closes the link behind it."""
        self.outbox.goodbye(goodbye(reason, text))

    async def check_storage(self, check: pb.StorageCheck) -> pb.StorageChecked:
        """Have something done to its checkpoint directory; ConnectionError when the link ends first."""
        if self.closed.done():
            raise ConnectionError(f"{self.name}: {self.closed.result()}")
        # an agent answers the checks of one name in order, so that one is open at a time
        answer: asyncio.Future[pb.StorageChecked] = asyncio.get_running_loop().create_future()
        self._checks[check.check] = answer
        self.outbox.put(pb.SchedulerMessage(storage_check=check))
        try:
            return await asyncio.wait_for(answer, PROOF_S)
        finally:
            self._checks.pop(check.check, None)

    def on_checked(self, said: pb.StorageChecked) -> None:
        """The answer to `check_storage`."""
        waiting = self._checks.get(said.check)
        if waiting is not None and not waiting.done():
            waiting.set_result(said)

    def on_health(self, health: pb.Health, node: Node | None) -> NodeReport | None:
        """Take in how the GPUs are; what the core has to know of it, if it does not. `node`: as the core knows it."""
        self.driver_version = health.driver_version or self.driver_version
        for said in health.gpus:
            seen = self.gpus.get(said.index)
            if seen is None:
                continue
            self.gpus[said.index] = GpuSeen(
                name=seen.name,
                uuid=seen.uuid,
                memory_gb=seen.memory_gb,
                memory_used_gb=_figure(said.memory_used_gb),
                temperature_c=_figure(said.temperature_c),
                broken=said.broken[:500],
                withheld=said.withheld[:500],
            )
        broken = tuple(said.index for said in health.gpus if said.broken and said.index in self.gpus)
        withheld = tuple(
            sorted({said.index for said in health.gpus if said.withheld and said.index in self.gpus})
        )
        trouble = health.trouble
        if node is None or not (
            not node.broken.issuperset(broken) or node.withheld != set(withheld) or is_news(node, trouble)
        ):
            return None
        generation = self.generation if self.generation >= 0 else node.generation
        return NodeReport(
            node=self.name,
            generation=generation,
            broken_gpus=broken,
            withheld_gpus=withheld,
            trouble=trouble,
        )

    def seen(self) -> NodeSeen:
        """For people."""
        return NodeSeen(
            heard_s=self.heard_s,
            agent_version=self.hello.agent_version,
            driver_version=self.driver_version,
            storage=self.storage,
            speed=_figure(self.hello.speed),
            containment=self.hello.containment,
            gpus=dict(self.gpus),
        )


def _figure(value: float) -> float:
    return value if math.isfinite(value) else 0.0
