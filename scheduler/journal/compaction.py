"""Keep a journal short while a scheduler runs: write snapshots from time to time, and drop the records they cover.

A start reads the newest snapshot and the facts after it, so its length depends on the sizes of both. A snapshot is due
after a number of facts, but for a large state not before the facts take as many bytes as the last snapshot did. So
neither writing snapshots nor reading facts ever dominates.

A snapshot is taken between two batches. It is encoded and written in a thread, and the next batch waits for it: the
state must not change, and a connection has one transaction. Everything else on the event loop continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.journal.store import SqliteJournal

SNAPSHOT_FACTS = 50_000
# The approximate size of a fact in a journal, to compare facts with bytes of snapshots.
FACT_BYTES = 400


class Keeper:
    """Write snapshots between batches when they are due: `drive` calls `batch_done`."""

    def __init__(
        self,
        journal: SqliteJournal,
        snapshot: Callable[[], bytes],
        *,
        facts: int = 0,
        snapshot_facts: int = SNAPSHOT_FACTS,
        compact: bool = True,
    ) -> None:
        """Begin with so many `facts`, those that recovery read after its snapshot; compact the journal if asked to."""
        self._journal, self._snapshot = journal, snapshot
        self._facts, self._snapshot_facts, self._compact = facts, snapshot_facts, compact
        self._snapshot_bytes = 0
        if compact:
            journal.compact()

    async def batch_done(self, facts: int) -> None:
        """Count facts that became durable, and write a snapshot if it is due. The state matches the journal now."""
        self._facts += facts
        if self._facts >= max(self._snapshot_facts, self._snapshot_bytes // FACT_BYTES):
            await self.keep()

    async def keep(self) -> None:
        """Write a snapshot now if there is anything new: before a planned stop it spares the next start all facts."""
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
