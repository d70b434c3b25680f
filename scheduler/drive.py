"""The one loop: messages in, decisions, facts made durable, effects out.

Whatever leaves the loop follows from facts that are on disk. When they cannot be written the process ends:
nothing was promised yet. What else raises ends it too, unless there is a `Rescue`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Protocol

from scheduler.core.core import Core
from scheduler.core.effects import Effect
from scheduler.core.facts import Fact
from scheduler.core.messages import Message
from scheduler.core.outcome import Outcome


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
    """Who keeps the journal short. `scheduler.journal.compaction` has one."""

    async def batch_done(self, facts: int) -> None:
        """So many facts became durable, and the state is what all records add up to. Nothing is said meanwhile."""
        ...


class Rescue(Protocol):
    """Who keeps the loop going when a message raises. `scheduler.live.rescue.rescue` has one; simulations have none."""

    def one_by_one(
        self, now_s: float, messages: Sequence[Message], error: Exception
    ) -> AsyncIterator[Outcome]:
        """Handle the messages of a batch that raised, one at a time. Each outcome is durable when it comes.

        What must end the process is raised again: a write that failed.
        """
        ...

    def not_performed(self, effect: Effect, error: Exception) -> None:
        """An effect could not be carried out."""
        ...


async def drive(
    core: Core, world: World, journal: Journal, keeper: Keeper | None = None, rescue: Rescue | None = None
) -> None:
    """Run until the world ends. A batch of messages is one record: all of it is durable before any effect leaves."""
    while (batch := await world.next()) is not None:
        failure: Exception | None = None
        try:
            outcome = core.handle_all(*batch)
            if outcome.facts:
                journal.append(outcome.now_s, outcome.facts)
        except Exception as error:
            if rescue is None:
                raise
            failure = error
        if failure is None:
            facts = len(outcome.facts)
            perform(world, outcome.effects, rescue)
        elif rescue is not None:
            facts = 0
            async for outcome in rescue.one_by_one(*batch, failure):
                facts += len(outcome.facts)
                perform(world, outcome.effects, rescue)
        if keeper is not None and facts:  # last: nobody waits longer because of it
            await keeper.batch_done(facts)


def perform(world: World, effects: Iterable[Effect], rescue: Rescue | None) -> None:
    """Carry effects out, in their order."""
    for effect in effects:
        try:
            world.perform(effect)
        except Exception as error:
            if rescue is None:
                raise
            rescue.not_performed(effect, error)
