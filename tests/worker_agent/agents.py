"""An agent's core in tests, with short ways to hand it events and look at it."""

from __future__ import annotations

from typing import Any

from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    Action,
    Desired,
    Event,
    Limits,
    LinkUp,
    Order,
    ProcessExited,
    ProcessStarted,
    Report,
    SendHello,
    StartProcess,
)

LIMITS = Limits(report_interval_s=1000.0, late_s=1.0, ask_s=20.0, grace_s=5.0)


class Agent:
    """A core with its link up, and short ways to hand it events."""

    def __init__(self, *, linked: bool = True) -> None:
        self.core = AgentCore(LIMITS)
        self.generation = 0
        if linked:
            assert self.tell(0, LinkUp()) == [SendHello()]

    def tell(self, now_s: float, event: Event) -> list[Action | Report]:
        """Hand over an event; return the actions, including a report that is due at once."""
        actions = self.core.handle(now_s, event)
        return [*actions, self.core.take_report()] if self.core.news else list(actions)

    def desire(self, now_s: float, *orders: Order) -> list[Action | Report]:
        """Hand over the next full set."""
        self.generation += 1
        return self.tell(now_s, Desired(1, self.generation, orders))

    def run(self, now_s: float, *orders: Order) -> None:
        """Hand over the next full set, and let all of it start."""
        for action in self.desire(now_s, *orders):
            if isinstance(action, StartProcess):
                self.tell(now_s, ProcessStarted(action.order.lease))
        assert {order.lease for order in orders} <= set(self.core.running)

    def exits_kept(self) -> set[str]:
        """Return the exits that it would report again."""
        return set(self.core.exits.kept)


def order(job: str, *gpus: int, attempt: int = 1, ends_s: float = 360.0, **more: Any) -> Order:
    """Return an order for the lease job/attempt, on GPU 0 unless others are given."""
    return Order(f"{job}/{attempt}", job, attempt, gpus or (0,), ends_s, **more)


def exited(lease: str, outcome: Any = "yielded", code: int = 0) -> ProcessExited:
    """Return the exit of all processes of a lease."""
    return ProcessExited(lease, outcome, 50.0, 40.0, 5.0, 6.0, code)


A, B, C = order("a"), order("b"), order("c")
