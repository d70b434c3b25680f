"""A simulated node: the agent's own core, and the translation between the scheduler's messages and the agent's."""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec.structs import replace

from scheduler.core.effects import SendLeases
from scheduler.core.messages import Exit, HeldLease, NodeHello, NodeReport, Progress
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import GpuId, Lease, nodes_of
from worker_agent.core.core import AgentCore
from worker_agent.core.messages import Desired, Limits, Order, ProcessExited, Progressed, SendHello


class Node:
    """One machine: whether it is up and reachable, its agent, and the leases that its agent received."""

    __slots__ = ("core", "leases", "link_changes", "reachable", "spec", "up", "wake_s")

    def __init__(self, spec: NodeSpec, limits: Limits) -> None:
        self.spec = spec
        self.core = AgentCore(limits)
        self.up = True
        self.reachable = True
        # How many times its link was lost or restored.
        self.link_changes = 0
        # The time of its agent's next Tick.
        self.wake_s = math.inf
        # The newest set of leases that its agent has received.
        self.leases: tuple[Lease, ...] = ()

    def reboot(self, limits: Limits) -> None:
        """Lose all processes and the agent's memory, except for the number of the newest set of orders (on disk)."""
        self.core = AgentCore(limits, epoch=self.core.epoch, generation=self.core.generation)
        self.wake_s = math.inf
        self.leases = ()

    def desired(self, effect: SendLeases) -> Desired:
        """Return a set of leases as orders for the agent, which name the node's GPUs by their local indexes."""
        core, leases, epoch, generation = self.core, effect.leases, effect.epoch, effect.generation
        if (epoch, generation) >= (core.epoch, core.generation):
            self.leases = leases
        if not leases:
            return Desired(epoch, generation, ())
        name, last, extra = self.spec.name, effect.last, effect.extra_save_s
        orders = tuple([order_of(lease, name, lease.id in last) for lease in leases])
        if extra:
            orders = tuple([replace(order, extra_save_s=extra.get(order.lease, 0.0)) for order in orders])
        # All leases of a set belong to one round.
        return Desired(epoch, generation, orders, leases[0].round_number)

    def lease(self, order: Order) -> Lease:
        """Return the lease that an order of the newest set came from."""
        if len(self.leases) == 1:
            return self.leases[0]
        return next(lease for lease in self.leases if lease.id == order.lease)

    def hello(self, action: SendHello) -> NodeHello:
        """Return the message that the node sends whenever its link comes up."""
        held = tuple(HeldLease(lease=run.lease, steps=run.steps, ran_s=run.ran_s) for run in action.held)
        return NodeHello(spec=self.spec, held=held)

    def report(self) -> NodeReport:
        """Return one report with all the news of its agent."""
        news = self.core.take_report()
        return NodeReport(
            node=self.spec.name,
            generation=news.generation,
            started=news.started,
            progress=tuple(map(_progress, news.progress)) if news.progress else (),
            exits=tuple(map(_exit, news.exits)) if news.exits else (),
        )


def _progress(event: Progressed) -> Progress:
    return Progress(event.lease, event.steps, event.saved, event.stepping_s)


def _exit(event: ProcessExited) -> Exit:
    return Exit(
        event.lease, event.outcome, event.steps, event.saved, event.stepping_s, event.ran_s, event.code
    )


def order_of(lease: Lease, node: str, last: bool) -> Order:
    """Return one node's part of a lease, as an order for its agent."""
    indexes, rank, nodes = _part(lease.gpus, node)
    return Order(
        lease.id,
        lease.job,
        lease.attempt,
        indexes,
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
    """Return the local indexes of the GPUs on this node, its rank among the nodes, and the number of nodes."""
    split = [gpu.rpartition(":") for gpu in gpus]
    nodes = nodes_of(gpus)
    return tuple([int(index) for name, _, index in split if name == node]), nodes.index(node), len(nodes)
