"""A simulated node: the agent's own core, and the scheduler's words translated into the agent's and back."""

from __future__ import annotations

import math
from functools import lru_cache

from scheduler.core.effects import SendLeases
from scheduler.core.messages import Exit, HeldLease, NodeHello, NodeReport, Progress
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import GpuId, Lease, nodes_of
from worker_agent.core.core import AgentCore
from worker_agent.core.messages import Desired, Limits, Order, ProcessExited, Progressed, SendHello


class Node:
    """One machine: up or not, reachable or not, and what its agent has been told."""

    __slots__ = ("core", "leases", "reachable", "spec", "unlinked", "up", "wake_s")

    def __init__(self, spec: NodeSpec, limits: Limits) -> None:
        self.spec = spec
        self.core = AgentCore(limits)
        self.up = True
        self.reachable = True
        self.unlinked = 0  # how often its link was lost or came back
        self.wake_s = math.inf  # when its agent is woken
        self.leases: tuple[Lease, ...] = ()  # of the newest set that its agent has

    def reboot(self, limits: Limits) -> None:
        """Processes and what the agent had in memory are gone; which set it had seen last is on disk."""
        self.core = AgentCore(limits, epoch=self.core.epoch, generation=self.core.generation)
        self.wake_s = math.inf
        self.leases = ()

    def desired(self, effect: SendLeases) -> Desired:
        """Return a set of leases as the agent's orders: of each lease the GPUs in this node, by local index."""
        core, leases, epoch, generation = self.core, effect.leases, effect.epoch, effect.generation
        if (epoch, generation) >= (core.epoch, core.generation):
            self.leases = leases
        if not leases:
            return Desired(epoch, generation, ())
        name, last = self.spec.name, effect.last
        orders = tuple([order_of(lease, name, lease.id in last) for lease in leases])
        # All leases of a set are of one round.
        return Desired(epoch, generation, orders, leases[0].round_number)

    def lease(self, order: Order) -> Lease:
        """What an order of the newest set was made of."""
        if len(self.leases) == 1:
            return self.leases[0]
        return next(lease for lease in self.leases if lease.id == order.lease)

    def hello(self, action: SendHello) -> NodeHello:
        """What it says when it joins or comes back."""
        held = tuple(HeldLease(lease=one.lease, steps=one.steps, ran_s=one.ran_s) for one in action.held)
        return NodeHello(spec=self.spec, held=held)

    def report(self) -> NodeReport:
        """All that its agent has to say at one instant."""
        send = self.core.take_report()
        return NodeReport(
            node=self.spec.name,
            generation=send.generation,
            started=send.started,
            progress=tuple(map(_progress, send.progress)) if send.progress else (),
            exits=tuple(map(_exit, send.exits)) if send.exits else (),
        )


def _progress(said: Progressed) -> Progress:
    return Progress(said.lease, said.steps, said.saved, said.stepping_s)


def _exit(said: ProcessExited) -> Exit:
    return Exit(said.lease, said.outcome, said.steps, said.saved, said.stepping_s, said.ran_s, said.code)


def order_of(lease: Lease, node: str, last: bool) -> Order:
    """What a lease asks of one of its nodes."""
    local, rank, nodes = _part(lease.gpus, node)
    return Order(
        lease.id,
        lease.job,
        lease.attempt,
        local,
        lease.ends_s,
        lease.epoch,
        rank,
        nodes,
        len(lease.gpus),
        lease.rendezvous,
        lease.steps_max,
        last,
    )


@lru_cache(maxsize=65536)
def _part(gpus: tuple[GpuId, ...], node: str) -> tuple[tuple[int, ...], int, int]:
    """The GPUs in this node by local index, its rank among the nodes, and how many these are."""
    split = [gpu.rpartition(":") for gpu in gpus]
    nodes = nodes_of(gpus)
    return tuple([int(index) for name, _, index in split if name == node]), nodes.index(node), len(nodes)
