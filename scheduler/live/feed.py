"""Facts as they become durable, for whoever watches: watchers of jobs and rounds, usage, the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.core.facts import Fact
from scheduler.drive import Journal
from scheduler.live.troubles import Troubles

WAITING_MAX = 10_000  # records that a slow reader may be behind

Listener = Callable[[float, Sequence[Fact]], None]
Queue = asyncio.Queue[tuple[float, Sequence[Fact]] | None]


class Fell(Exception):
    """This reader was too slow, and has missed something: it has to begin again."""


class Feed:
    """A journal that tells everybody what has become durable in it."""

    def __init__(self, journal: Journal, troubles: Troubles | None = None) -> None:
        self._journal = journal
        self.troubles = troubles or Troubles()
        self._listeners: list[Listener] = []
        self._readers: set[Queue] = set()

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Durable on return, and said to all who listen."""
        self._journal.append(now_s, facts)
        for listener in self._listeners:
            try:
                listener(now_s, facts)
            except Exception as error:  # the facts are durable: who only watches must not end the scheduler
                self.troubles.note("passing on what was recorded failed", error, facts)
        for reader in list(self._readers):
            if reader.qsize() >= WAITING_MAX:
                self._readers.discard(reader)
                reader.put_nowait(None)
            else:
                reader.put_nowait((now_s, facts))

    def read(self) -> Iterator[tuple[float, Fact]]:
        """All facts, oldest first."""
        return self._journal.read()

    def listen(self, listener: Listener) -> None:
        """Call this with every record from now on. It must be quick. What it raises is logged."""
        self._listeners.append(listener)

    @contextmanager
    def follow(self) -> Iterator[AsyncIterator[tuple[float, Sequence[Fact]]]]:
        """Every record from now on, however late one begins to read; Fell for a reader that does not keep up."""
        queue: Queue = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield _all_of(queue)
        finally:
            self._readers.discard(queue)


async def _all_of(queue: Queue) -> AsyncIterator[tuple[float, Sequence[Fact]]]:
    while (record := await queue.get()) is not None:
        yield record
    raise Fell("the reader was too slow")
