"""The one loop: messages in, decisions, facts made durable, effects out.

Whatever leaves the loop follows from facts that are on disk. When they cannot be written the process ends:
nothing was promised yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduler.core.core import Core
from scheduler.core.effects import Effect
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


class Keeper(Protocol):
    """Who keeps the journal short. `scheduler.journal.keeping` has one."""

    async def batch_done(self, facts: int) -> None:
        """So many facts became durable, and the state is what all records add up to. Nothing is said meanwhile."""
        ...


async def drive(core: Core, world: World, journal: Journal, keeper: Keeper | None = None) -> None:
    """Run until the world ends. A batch of messages is one record: all of it is durable before any effect leaves."""
    while (batch := await world.next()) is not None:
        outcome = core.handle_all(*batch)
        if outcome.facts:
            journal.append(outcome.now_s, outcome.facts)
        for effect in outcome.effects:
            world.perform(effect)
        if keeper is not None and outcome.facts:  # last: nobody waits longer because of it
            await keeper.batch_done(len(outcome.facts))
