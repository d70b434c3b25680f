"""The state that the journal holds, to go back to when something raised in the middle of a change.

The first time it is read from the journal, which takes as long as a start. After that a snapshot of it is kept in
memory, with the facts since, so that going back again is quick; in quiet times there is neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.apply import apply
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.record import Journal
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.replay import no_garbage_collection

FACTS_MAX = 5000  # beyond which the snapshot in memory is let go: reading the journal is as quick


class DurableState:
    """Give `hear` to the Feed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: bytes | None = None
        self._since: list[tuple[float, Sequence[Fact]]] = []
        self._facts = 0

    def hear(self, now_s: float, facts: Sequence[Fact]) -> None:
        """These facts have become durable."""
        if self._snapshot is None:
            return
        self._since.append((now_s, facts))
        self._facts += len(facts)
        if self._facts > FACTS_MAX:
            self._keep(None)

    def restored(self) -> SchedulerState:
        """A state of its own, equal to what all durable facts add up to."""
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
