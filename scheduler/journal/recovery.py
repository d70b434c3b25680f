"""Recovery of the scheduler itself: `recover` with the scheduler's state, its facts and its invariants."""

from __future__ import annotations

from scheduler.core.apply import apply
from scheduler.core.invariants import check
from scheduler.core.state import SchedulerState
from scheduler.journal.fit import fit
from scheduler.journal.record import Journal
from scheduler.journal.replay import Recovered, Rules, recover

RULES = Rules(SchedulerState, SchedulerState.restore, apply, check, fit)


def recover_scheduler(journal: Journal, *, strict: bool = False) -> Recovered[SchedulerState]:
    """The state that the journal adds up to.

    With `lost_records`, identifiers that the state has not seen may have been used: docs/journal-format.md,
    "Recovery", says what whoever starts a scheduler from it has to keep clear of.
    """
    return recover(journal, RULES, strict=strict)
