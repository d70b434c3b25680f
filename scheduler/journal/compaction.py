"""How a journal is kept short while a scheduler runs: snapshots now and then, and what they cover dropped.

A start reads the newest snapshot and the facts after it, so that it takes as long as these two are large. A snapshot
is due after so many facts, and of a large state not before there are as many bytes of facts as there were in the last
one: then neither writing snapshots nor reading facts is ever the larger part.

A snapshot is of one moment, between two batches. It is encoded and written in a thread, for which the next batch waits:
the state must not change, and a connection has one transaction. Whatever else there is on the event loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

SNAPSHOT_FACTS = 50_000
FACT_BYTES = 400  # about what one takes in a journal; with it, bytes of snapshots are compared with facts


class Kept(Protocol):
    """What keeping needs of a journal."""

    @property
    def last_seq(self) -> int:
        """The number of the last record."""
        ...

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Keep the state after record `seq`."""
        ...

    def compact(self) -> int:
        """Delete records that two snapshots cover; how many."""
        ...


class Keeper:
    """Decides when, between two batches, and does it then: `drive` calls `batch_done`."""

    def __init__(
        self,
        journal: Kept,
        snapshot: Callable[[], bytes],
        *,
        facts: int = 0,
        snapshot_facts: int = SNAPSHOT_FACTS,
        compact: bool = True,
    ) -> None:
        """`facts`: how many recovery read after its snapshot. A journal whose records are dropped begins so, too."""
        self._journal, self._snapshot = journal, snapshot
        self._facts, self._snapshot_facts, self._compact = facts, snapshot_facts, compact
        self._snapshot_bytes = 0
        if compact:
            journal.compact()

    async def batch_done(self, facts: int) -> None:
        """So many facts became durable, and the state is what all records add up to."""
        self._facts += facts
        if self._facts >= max(self._snapshot_facts, self._snapshot_bytes // FACT_BYTES):
            await self.keep()

    async def keep(self) -> None:
        """A snapshot now, if there is anything new: before a planned stop, so that the next start reads no facts."""
        if not self._facts or not self._journal.last_seq:
            return
        self._snapshot_bytes = await asyncio.to_thread(self._write)
        self._facts = 0

    def _write(self) -> int:
        payload = self._snapshot()
        self._journal.write_snapshot(self._journal.last_seq, payload)
        if self._compact:
            self._journal.compact()
        return len(payload)
