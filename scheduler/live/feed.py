"""The feed of durable records: it calls listeners, such as the log, with each record, and readers wait for records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.core.facts import Fact
from scheduler.journal.record import Journal
from scheduler.live.troubles import Troubles

# How many records a slow reader may be behind.
WAITING_MAX = 10_000

Listener = Callable[[float, Sequence[Fact]], None]
Queue = asyncio.Queue[tuple[float, Sequence[Fact]] | None]


class FellBehind(Exception):
    """The reader was too slow and missed records, so it has to start again."""


class Feed:
    """A journal that passes every durable record on to its listeners and readers."""

    def __init__(self, journal: Journal, troubles: Troubles | None = None) -> None:
        self.journal = journal
        self.troubles = troubles or Troubles()
        # When writing the newest record began and ended, by `time.perf_counter`.
        self.append_began_s = self.append_ended_s = 0.0
        self._listeners: list[Listener] = []
        self._readers: set[Queue] = set()

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Make a record durable, then pass it on to all listeners and readers."""
        self.append_began_s = time.perf_counter()
        self.journal.append(now_s, facts)
        self.append_ended_s = time.perf_counter()
        for listener in self._listeners:
            try:
                listener(now_s, facts)
            # The facts are durable: the failure of a listener must not end the scheduler.
            except Exception as error:
                self.troubles.note("a listener failed on a record", error, facts)
        for reader in list(self._readers):
            if reader.qsize() >= WAITING_MAX:
                self._readers.discard(reader)
                reader.put_nowait(None)
            else:
                reader.put_nowait((now_s, facts))

    def listen(self, listener: Listener) -> None:
        """Call the listener with every record from now on. It must return quickly; its errors are logged."""
        self._listeners.append(listener)

    @contextmanager
    def follow(self) -> Iterator[AsyncIterator[tuple[float, Sequence[Fact]]]]:
        """Yield a reader of every record from now on, including those that come before the reading begins.

        The reader raises FellBehind when it is more than WAITING_MAX records late.
        """
        queue: Queue = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield _records_of(queue)
        finally:
            self._readers.discard(queue)


async def _records_of(queue: Queue) -> AsyncIterator[tuple[float, Sequence[Fact]]]:
    while (record := await queue.get()) is not None:
        yield record
    raise FellBehind("the reader was too slow")
