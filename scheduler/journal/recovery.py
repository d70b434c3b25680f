"""Recovery of the scheduler: `recover` with the scheduler's state, facts and invariants."""

from __future__ import annotations

from scheduler.core.apply import apply
from scheduler.core.facts import Fact, RecordsLost
from scheduler.core.invariants import check
from scheduler.core.on_jobs import JOBS_PER_CALL_MAX
from scheduler.core.state import SchedulerState
from scheduler.journal.record import Journal
from scheduler.journal.repair.surviving_facts import surviving_facts
from scheduler.journal.replay import Recovered, Rules, recover

# The greatest number of ids that one record can use.
IDS_PER_RECORD_MAX = JOBS_PER_CALL_MAX


def loss_fact(state: SchedulerState, records: int) -> tuple[float, Fact]:
    """Return the time of the state, and a fact that skips every epoch and id that the lost records may have used."""
    jump = records * IDS_PER_RECORD_MAX
    return state.now_s, RecordsLost(
        records=records,
        epoch=state.epoch + records,
        next_job=state.next_job + jump,
        next_lease=state.next_lease + jump,
    )


RULES = Rules(
    make=SchedulerState,
    restore=SchedulerState.restore,
    apply=apply,
    check=check,
    surviving_facts=surviving_facts,
    loss_fact=loss_fact,
)


def recover_scheduler(journal: Journal, *, strict: bool = False) -> Recovered[SchedulerState]:
    """Recover the state from the journal.

    If records were lost, the state skips all ids that they may have used, and the next `Core.take_over` counts a GPU as
    free only after its node has reported (docs/journal-format.md).
    """
    return recover(journal, RULES, strict=strict)
