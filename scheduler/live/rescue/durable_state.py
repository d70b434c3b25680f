"""The durable state: the one in the journal, to which the scheduler returns if a change of the state raises half-way.

The first return reads the journal, which takes as long as a start. From then on, a snapshot of the durable state and
all later facts are kept in memory, so that the next return is quick. As long as no error occurs, neither is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.apply import apply
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.record import Journal
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.replay import no_garbage_collection

# With more facts than this, the snapshot and the facts in memory are dropped: reading the journal is as quick then.
FACTS_MAX = 5000


class DurableState:
    """The durable state of a journal. The Feed has to call `listen`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: bytes | None = None
        self._later_facts: list[tuple[float, Sequence[Fact]]] = []
        self._fact_count = 0

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Keep facts that have become durable, if there is a snapshot in memory."""
        if self._snapshot is None:
            return
        self._later_facts.append((now_s, facts))
        self._fact_count += len(facts)
        if self._fact_count > FACTS_MAX:
            self._keep(None)

    def restored(self) -> SchedulerState:
        """Return a new state with all durable facts applied."""
        if self._snapshot is None:
            state = recover_scheduler(self._journal, strict=True).state
            self._keep(state.snapshot())
            return state
        with no_garbage_collection():
            state = SchedulerState.restore(self._snapshot)
            for now_s, facts in self._later_facts:
                for fact in facts:
                    apply(state, now_s, fact)
        return state

    def _keep(self, snapshot: bytes | None) -> None:
        """Keep this snapshot without later facts; None: keep nothing."""
        self._snapshot, self._later_facts, self._fact_count = snapshot, [], 0
