"""Recovery of the scheduler itself: `recover` with the scheduler's state, its facts and its invariants."""

from __future__ import annotations

from scheduler.core.apply import apply
from scheduler.core.facts import Fact, RecordsLost
from scheduler.core.invariants import check
from scheduler.core.on_jobs import JOBS_PER_CALL_MAX
from scheduler.core.state import SchedulerState
from scheduler.journal.record import Journal
from scheduler.journal.repair.surviving_facts import fit
from scheduler.journal.replay import Recovered, Rules, recover

IDS_PER_RECORD_MAX = JOBS_PER_CALL_MAX  # numbers that one record is taken to have used at most


def lost(state: SchedulerState, records: int) -> tuple[float, Fact]:
    """What is to be kept clear of: a record starts one epoch at most, and uses so many numbers."""
    jump = records * IDS_PER_RECORD_MAX
    return state.now_s, RecordsLost(
        records=records,
        epoch=state.epoch + records,
        next_job=state.next_job + jump,
        next_lease=state.next_lease + jump,
    )


RULES = Rules(SchedulerState, SchedulerState.restore, apply, check, fit, lost)


def recover_scheduler(journal: Journal, *, strict: bool = False) -> Recovered[SchedulerState]:
    """The state that the journal adds up to.

    With `lost_records`, identifiers that the state has not seen may have been used: the state counts on beyond them,
    and the next `Core.take_over` believes no GPU to be free before its node has said so (docs/journal-format.md).
    """
    return recover(journal, RULES, strict=strict)
