"""The one loop: messages in, decisions, facts made durable, effects out.

Effects leave the loop only after the facts from which they follow are on disk. If the facts cannot be written, the
process ends; this is safe, because no reply has been sent yet. Any other error ends the process, too, unless there is
a `Rescue`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from scheduler.core.core import Core
from scheduler.core.effects import Effect
from scheduler.core.facts import Fact
from scheduler.core.messages import Message
from scheduler.core.outcome import Outcome


class World(Protocol):
    """The source of messages, which also carries effects out."""

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return the time and all waiting messages; None when the world ends."""
        ...

    def perform(self, effect: Effect) -> None:
        """Carry an effect out. Timers are effects too."""
        ...


class Journal(Protocol):
    """The durable record of facts."""

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Append one atomic record; it is durable on return."""
        ...


class Keeper(Protocol):
    """Keeps the journal short, as in `scheduler.journal.compaction`."""

    async def batch_done(self, facts: int) -> None:
        """Count facts that became durable. The caller does not change the state before this returns."""
        ...


class Rescue(Protocol):
    """Recovers from a message that raises, as in `scheduler.live.rescue.rescue`. Simulations have none."""

    def one_by_one(
        self, now_s: float, messages: Sequence[Message], error: Exception
    ) -> AsyncIterator[Outcome]:
        """Handle the messages of a batch that raised, one at a time. Each outcome is durable when it is yielded.

        Errors that must end the process, such as a failed write, are raised.
        """
        ...

    def not_performed(self, effect: Effect, error: Exception) -> None:
        """Report that an effect could not be carried out."""
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
        # The keeper comes last, so that no effect waits for it.
        if keeper is not None and facts:
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
