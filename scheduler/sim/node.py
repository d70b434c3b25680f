"""A simulated node: the agent's own core, and the scheduler's words translated into the agent's and back."""

from __future__ import annotations

import math

import msgspec

from scheduler.core.effects import SendLeases
from scheduler.core.messages import Exit, HeldLease, NodeHello, NodeReport, Progress
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import Lease, nodes_of
from worker_agent.core import AgentCore
from worker_agent.orders import Desired, Limits, Order, ProcessExited, Progressed, SayHello, Send


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
        self.leases: dict[str, Lease] = {}  # of the newest set that its agent has

    def reboot(self, limits: Limits) -> None:
        """Processes and what the agent had in memory are gone; which set it had seen last is on disk."""
        self.core = AgentCore(limits, epoch=self.core.epoch, generation=self.core.generation)
        self.wake_s = math.inf
        self.leases = {}

    def desired(self, effect: SendLeases) -> Desired:
        """A set of leases as orders: each lease's share of GPUs in this node, by local index."""
        name = self.spec.name
        orders = tuple([order_of(lease, name) for lease in effect.leases])
        if effect.last:
            orders = tuple([msgspec.structs.replace(one, last=one.lease in effect.last) for one in orders])
        number = effect.leases[0].round_number if effect.leases else 0  # all are of one round
        return Desired(effect.epoch, effect.generation, orders, number)

    def hello(self, action: SayHello) -> NodeHello:
        """What it says when it joins or comes back."""
        held = tuple(HeldLease(lease=one.lease, steps=one.steps, ran_s=one.ran_s) for one in action.held)
        return NodeHello(spec=self.spec, held=held)

    def report(self, sends: list[Send]) -> NodeReport:
        """Everything that its agent said at one instant, as one report."""
        if len(sends) == 1:
            (send,) = sends
            started, progress, exits = send.started, send.progress, send.exits
        else:
            started = tuple([lease for send in sends for lease in send.started])
            progress = tuple([one for send in sends for one in send.progress])
            exits = tuple({one.lease: one for send in sends for one in send.exits}.values())
        return NodeReport(
            node=self.spec.name,
            generation=self.core.generation,
            started=started,
            progress=tuple(map(_progress, progress)),
            exits=tuple(map(_exit, exits)),
        )


def _progress(said: Progressed) -> Progress:
    return Progress(said.lease, said.steps, said.saved, said.stepping_s)


def _exit(said: ProcessExited) -> Exit:
    return Exit(said.lease, said.outcome, said.steps, said.saved, said.stepping_s, said.ran_s, said.code)


def order_of(lease: Lease, node: str) -> Order:
    """What a lease asks of one of its nodes."""
    gpus = lease.gpus
    if len(gpus) == 1:
        local: tuple[int, ...] = (int(gpus[0].rpartition(":")[2]),)
        return Order(
            lease.id,
            *(lease.job, lease.attempt, local, lease.ends_s, lease.epoch, 0, 1, 1),
            *(lease.rendezvous, lease.steps_max),
        )
    nodes = nodes_of(gpus)
    split = [gpu.rpartition(":") for gpu in gpus]
    local = tuple([int(index) for name, _, index in split if name == node])
    return Order(
        lease.id,
        *(lease.job, lease.attempt, local, lease.ends_s, lease.epoch),
        *(nodes.index(node), len(nodes), len(gpus), lease.rendezvous, lease.steps_max),
    )
