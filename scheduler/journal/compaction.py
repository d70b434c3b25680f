"""Keep a journal short while a scheduler runs: write snapshots from time to time, and delete the records they cover.

The scheduler reads the newest snapshot and the facts after it when it starts, so the sizes of both determine how long a
start takes. A snapshot is due after a number of facts. For a large state, it is due only when the facts take as many
bytes as the last snapshot. So neither writing snapshots nor reading facts takes most of the time.

A snapshot is taken between two batches, in a thread. Until it is written, the next batch waits, because the state must
not change, and because a connection has only one transaction. Everything else on the event loop continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.journal.store import SqliteJournal

SNAPSHOT_FACTS = 50_000
# The approximate size of a fact in a journal, to compare the size of facts with that of a snapshot.
FACT_BYTES = 400


class Keeper:
    """Writes the snapshots of a journal when they are due. `drive` calls `batch_done` between batches."""

    def __init__(
        self,
        journal: SqliteJournal,
        snapshot: Callable[[], bytes],
        *,
        facts: int = 0,
        snapshot_facts: int = SNAPSHOT_FACTS,
        compact: bool = True,
    ) -> None:
        """`facts`: how many facts recovery read after its snapshot. `compact`: compact now, and after each snapshot."""
        self._journal, self._snapshot = journal, snapshot
        # How many facts no snapshot covers.
        self.facts = facts
        self._snapshot_facts, self._compact = snapshot_facts, compact
        self._snapshot_bytes = 0
        if compact:
            journal.compact()

    async def batch_done(self, facts: int) -> None:
        """Count facts that became durable, and write a snapshot if one is due. The state must match the journal."""
        self.facts += facts
        if self.facts >= max(self._snapshot_facts, self._snapshot_bytes // FACT_BYTES):
            await self.write_snapshot()

    async def write_snapshot(self) -> None:
        """Write a snapshot now if there are new facts. Before a planned stop, this makes the next start faster."""
        if not self.facts or not self._journal.last_seq:
            return
        self._snapshot_bytes = await asyncio.to_thread(self._write)
        self.facts = 0

    def _write(self) -> int:
        payload = self._snapshot()
        self._journal.write_snapshot(self._journal.last_seq, payload)
        if self._compact:
            self._journal.compact()
        return len(payload)
