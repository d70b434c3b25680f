"""The state that the journal holds, to return to when something raised in the middle of a change.

The first time, it is read from the journal, which takes as long as a start. A snapshot of it is then kept in memory
with the facts since, so that the next return is quick. Without errors, memory holds neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.apply import apply
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.record import Journal
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.replay import no_garbage_collection

# With more facts, the snapshot in memory is dropped: reading the journal is as quick.
FACTS_MAX = 5000


class DurableState:
    """The durable state of a journal. The Feed has to call `listen`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: bytes | None = None
        self._since: list[tuple[float, Sequence[Fact]]] = []
        self._facts = 0

    def hear(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Take in facts that have become durable."""
        if self._snapshot is None:
            return
        self._since.append((now_s, facts))
        self._facts += len(facts)
        if self._facts > FACTS_MAX:
            self._keep(None)

    def restored(self) -> SchedulerState:
        """Return a new state: the sum of all durable facts."""
        if self._snapshot is None:
            state = recover_scheduler(self._journal, strict=True).state
            self._keep(state.snapshot())
            return state
        with no_garbage_collection():
            state = SchedulerState.restore(self._snapshot)
            for now_s, facts in self._since:
                for fact in facts:
                    apply(state, now_s, fact)
        return state

    def _keep(self, snapshot: bytes | None) -> None:
        self._snapshot, self._since, self._facts = snapshot, [], 0
