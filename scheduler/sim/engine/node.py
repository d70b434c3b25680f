"""A simulated node: the agent's own core, and the translation between the scheduler's messages and the agent's."""

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
    """One machine: whether it is up and reachable, its agent, and the leases that its agent received."""

    __slots__ = ("core", "leases", "reachable", "spec", "unlinked", "up", "wake_s")

    def __init__(self, spec: NodeSpec, limits: Limits) -> None:
        self.spec = spec
        self.core = AgentCore(limits)
        self.up = True
        self.reachable = True
        # How many times its link was lost or came back.
        self.unlinked = 0
        # The next Tick of its agent.
        self.wake_s = math.inf
        # The newest set of leases that its agent has received.
        self.leases: tuple[Lease, ...] = ()

    def reboot(self, limits: Limits) -> None:
        """Lose all processes and the agent's memory. The number of its newest set of leases is on disk, and stays."""
        self.core = AgentCore(limits, epoch=self.core.epoch, generation=self.core.generation)
        self.wake_s = math.inf
        self.leases = ()

    def desired(self, effect: SendLeases) -> Desired:
        """Return a set of leases as orders for the agent. Each names the GPUs of this node by their local index."""
        core, leases, epoch, generation = self.core, effect.leases, effect.epoch, effect.generation
        if (epoch, generation) >= (core.epoch, core.generation):
            self.leases = leases
        if not leases:
            return Desired(epoch, generation, ())
        name, last = self.spec.name, effect.last
        orders = tuple([order_of(lease, name, lease.id in last) for lease in leases])
        # All leases of a set belong to one round.
        return Desired(epoch, generation, orders, leases[0].round_number)

    def lease(self, order: Order) -> Lease:
        """Return the lease that an order of the newest set came from."""
        if len(self.leases) == 1:
            return self.leases[0]
        return next(lease for lease in self.leases if lease.id == order.lease)

    def hello(self, action: SendHello) -> NodeHello:
        """Return the message that the node sends when it joins or comes back."""
        held = tuple(HeldLease(lease=run.lease, steps=run.steps, ran_s=run.ran_s) for run in action.held)
        return NodeHello(spec=self.spec, held=held)

    def report(self) -> NodeReport:
        """Return one report of everything that its agent has to report at this instant."""
        send = self.core.take_report()
        return NodeReport(
            node=self.spec.name,
            generation=send.generation,
            started=send.started,
            progress=tuple(map(_progress, send.progress)) if send.progress else (),
            exits=tuple(map(_exit, send.exits)) if send.exits else (),
        )


def _progress(event: Progressed) -> Progress:
    return Progress(event.lease, event.steps, event.saved, event.stepping_s)


def _exit(event: ProcessExited) -> Exit:
    return Exit(
        event.lease, event.outcome, event.steps, event.saved, event.stepping_s, event.ran_s, event.code
    )


def order_of(lease: Lease, node: str, last: bool) -> Order:
    """Return the part of a lease that one of its nodes carries out, as an order for its agent."""
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
    """Return the local indexes of the GPUs in this node, its rank among the nodes, and the number of nodes."""
    split = [gpu.rpartition(":") for gpu in gpus]
    nodes = nodes_of(gpus)
    return tuple([int(index) for name, _, index in split if name == node]), nodes.index(node), len(nodes)
