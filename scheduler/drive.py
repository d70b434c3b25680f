"""The one loop: messages in, decisions, facts made durable, effects out.

Whatever leaves the loop follows from facts that are on disk. When they cannot be written the process ends:
nothing was promised yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduler.core.core import Core
from scheduler.core.effects import Effect, SendLeases
from scheduler.core.facts import Fact
from scheduler.core.messages import Message


class World(Protocol):
    """Where messages come from and effects go to."""

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """All that is waiting, and the time; None when the world ends."""
        ...

    def perform(self, effect: Effect) -> None:
        """Carry an effect out. Timers are effects too."""
        ...


class Journal(Protocol):
    """Where facts become durable."""

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """One atomic record; durable on return."""
        ...

    def read(self) -> Iterator[tuple[float, Fact]]:
        """All facts, oldest first."""
        ...


async def drive(core: Core, world: World, journal: Journal) -> None:
    """Run until the world ends. A batch of messages is one record: all of it is durable before any effect leaves."""
    while (batch := await world.next()) is not None:
        now_s, messages = batch
        facts: list[Fact] = []
        effects: list[Effect] = []
        for message in messages:
            outcome = core.handle(now_s, message)
            facts += outcome.facts
            effects += outcome.effects
        if facts:
            journal.append(core.state.now_s, facts)
        for effect in newest(effects):
            world.perform(effect)


def newest(effects: list[Effect]) -> list[Effect]:
    """A node's set of leases is always the whole set, so that of several only the last matters."""
    last = {e.node: i for i, e in enumerate(effects) if type(e) is SendLeases}
    if not last:
        return effects
    return [e for i, e in enumerate(effects) if type(e) is not SendLeases or last[e.node] == i]
