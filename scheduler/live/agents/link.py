"""The scheduler's end of one agent's stream: the agent's identity, its last reports, and what waits to be sent."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.failed_starts import changes_state
from scheduler.core.messages import NodeReport
from scheduler.core.on_failures import changes_idle
from scheduler.core.state import SchedulerState
from scheduler.live.agents.outbox import Outbox
from scheduler.live.node_views import GpuDetails, NodeDetails
from scheduler.live.pace import PROOF_S
from scheduler.live.wire.agents import goodbye, gpus_of, peer_host


class AgentClock:
    """A lower bound of an agent's clock, from the times in its messages.

    The message with the shortest delay gives the best bound, and no message gives a time later than the true one. Only
    messages of the last two spans of SPAN_S count, because clocks drift.
    """

    SPAN_S = 60.0

    def __init__(self) -> None:
        # The largest difference between the agent's clock and ours, in this span and in the previous one.
        self._best = self._best_previous = -math.inf
        # When this span began, by our clock.
        self._since_s = -math.inf

    def note(self, sent_s: float, now_s: float) -> None:
        """Record that a message arrives now that was sent at `sent_s` by the agent's clock."""
        if not (math.isfinite(sent_s) and sent_s > 0):
            return
        if now_s - self._since_s > self.SPAN_S:
            self._best_previous, self._best, self._since_s = self._best, -math.inf, now_s
        self._best = max(self._best, sent_s - now_s)

    def at(self, now_s: float) -> float:
        """Return a time that the agent's clock has reached by now; 0 if no message has arrived."""
        best = max(self._best, self._best_previous)
        return max(now_s + best, 0.0) if best > -math.inf else 0.0


class NodeLink:
    """A link to an agent, from its Hello until it is closed; the result of `closed` is the reason."""

    def __init__(self, hello: pb.Hello, peer: str, outbox: Outbox) -> None:
        self.hello, self.outbox = hello, outbox
        self.clock = AgentClock()
        self.name, self.incarnation = hello.node, hello.incarnation
        self.address = hello.address or peer_host(peer)
        self.last_message_s = 0.0
        # The generation of the newest set of leases that the agent has confirmed; -1 before the first.
        self.generation = -1
        # The storage whose checkpoints the node sees; empty if it sees only its own checkpoints.
        self.storage = ""
        # Whether Welcome was queued for the agent.
        self.welcome = False
        # Why the scheduler failed on a message of the agent; empty if it has not failed.
        self.failure = ""
        self.gpus: dict[int, GpuDetails] = gpus_of(hello)
        self.driver_version = hello.driver_version
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # Id of a check of the storage → the future that receives the agent's answer.
        self._checks: dict[str, asyncio.Future[pb.StorageChecked]] = {}
        self._message_arrived = asyncio.Event()

    def on_message(self, sent_s: float, now_s: float) -> None:
        """Record that a message has arrived, sent at `sent_s` by the agent's clock."""
        self.last_message_s = now_s
        self.clock.note(sent_s, now_s)
        self._message_arrived.set()

    async def answers_within(self, wait_s: float) -> bool:
        """Ask the agent whether it is alive, and return whether any message arrives in time."""
        self._message_arrived.clear()
        self.outbox.put(pb.SchedulerMessage(alive=pb.Alive()))
        arrival: asyncio.Future[Any] = asyncio.ensure_future(self._message_arrived.wait())
        closed: asyncio.Future[Any] = self.closed
        await asyncio.wait({arrival, closed}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        arrival.cancel()
        return self._message_arrived.is_set() and not self.closed.done()

    def close(self, why: str) -> None:
        """Stop reading from the agent and writing to it."""
        if not self.closed.done():
            self.closed.set_result(why)
        for answer in self._checks.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self.name}: {why}"))

    def fail(self, why: str) -> None:
        """Close the link because the scheduler failed on a message. The agent receives `why`, and may link again."""
        self.failure = why
        self.close(why)

    def dismiss(self, reason: str, text: str) -> None:
        """Queue a goodbye, after which the writer closes the link."""
        self.outbox.goodbye(goodbye(reason, text))

    async def check_storage(self, check: pb.StorageCheck) -> pb.StorageChecked:
        """Have the agent check its checkpoint directory; raise ConnectionError if the link ends first."""
        if self.closed.done():
            raise ConnectionError(f"{self.name}: {self.closed.result()}")
        # The steps of a check follow one another, so the agent has at most one step of each check to answer.
        answer: asyncio.Future[pb.StorageChecked] = asyncio.get_running_loop().create_future()
        self._checks[check.check] = answer
        self.outbox.put(pb.SchedulerMessage(storage_check=check))
        try:
            return await asyncio.wait_for(answer, PROOF_S)
        finally:
            self._checks.pop(check.check, None)

    def on_checked(self, checked: pb.StorageChecked) -> None:
        """Pass the agent's answer to the `check_storage` that waits for it."""
        answer = self._checks.get(checked.check)
        if answer is not None and not answer.done():
            answer.set_result(checked)

    def on_health(self, health: pb.Health, state: SchedulerState) -> NodeReport | None:
        """Record the state of the GPUs. Return a report if it differs from the core's record of the node."""
        node = state.nodes.get(self.name)
        self.driver_version = health.driver_version or self.driver_version
        for reported in health.gpus:
            gpu = self.gpus.get(reported.index)
            if gpu is None:
                continue
            self.gpus[reported.index] = msgspec.structs.replace(
                gpu,
                memory_used_gb=_finite_or_zero(reported.memory_used_gb),
                temperature_c=_finite_or_zero(reported.temperature_c),
                broken=reported.broken[:500],
                withheld=reported.withheld[:500],
            )
        broken = tuple(gpu.index for gpu in health.gpus if gpu.broken and gpu.index in self.gpus)
        withheld = tuple(
            sorted({gpu.index for gpu in health.gpus if gpu.withheld and gpu.index in self.gpus})
        )
        trouble = health.trouble
        idle_s = {idle.lease: idle.idle_s for idle in health.idle}
        if node is None or not (
            not node.broken.issuperset(broken)
            or node.withheld != set(withheld)
            or changes_state(node, trouble)
            or changes_idle(state, self.name, idle_s)
        ):
            return None
        generation = self.generation if self.generation >= 0 else node.generation
        return NodeReport(
            node=self.name,
            generation=generation,
            broken_gpus=broken,
            withheld_gpus=withheld,
            trouble=trouble,
            idle_s=idle_s,
        )

    def view(self) -> NodeDetails:
        """Return what `gavel nodes` shows of the agent."""
        return NodeDetails(
            last_message_s=self.last_message_s,
            agent_version=self.hello.agent_version,
            driver_version=self.driver_version,
            storage=self.storage,
            speed=_finite_or_zero(self.hello.speed),
            containment=self.hello.containment,
            gpus=dict(self.gpus),
        )


def _finite_or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
