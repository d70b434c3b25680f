"""The history checker accepts true histories, and for forged ones names each promise that they break.

A promise is a guarantee of the scheduler, such as: a job never has two attempts at the same time.
"""

from __future__ import annotations

import pytest

from scheduler.core.facts import (
    Fact,
    GpusFilled,
    JobMoved,
    JobSubmitted,
    LeaseClosed,
    LeasesStarted,
    NodeJoined,
)
from scheduler.core.messages import Exit
from scheduler.core.state import SchedulerState
from scheduler.journal.history import History
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Bundle, Lease
from tests.support.journals import broken_by


def lease(name: str, job: str, gpus: str = "n1:0", attempt: int = 1, epoch: int = 1) -> Lease:
    """A lease on these GPUs."""
    ids = tuple(gpus.split())
    return Lease(name, job, Bundle((job,), "v100", len(ids)), attempt, epoch, ids, 1, 60.0)


def granted(*leases: Lease) -> Fact:
    """The fact that these leases were granted."""
    return GpusFilled(granted=leases)


def closed(name: str) -> Fact:
    """The fact that this lease was closed."""
    return LeaseClosed(exit=Exit(name, "yielded", 5.0, 5.0, 1.0, 1.0))


def moved(job: str, move: Move) -> Fact:
    """The fact that this job made this move."""
    return JobMoved(job=job, move=move)


BEGINNING: tuple[Fact, ...] = (
    NodeJoined(spec=NodeSpec(name="n1", worker_type="v100", gpus=2)),
    *(JobSubmitted(job=name, spec=JobSpec()) for name in ("101", "102", "103")),
)
GOOD: tuple[Fact, ...] = (
    granted(lease("1", "101"), lease("2", "102", "n1:1")),
    LeasesStarted(leases=("1", "2")),
    # Lease 3 waits for the exit of lease 1.
    granted(lease("3", "103")),
    closed("1"),
    LeasesStarted(leases=("3",)),
    # Job 101 is packed with job 103.
    granted(lease("4", "101", "n1:0", attempt=2)),
    LeasesStarted(leases=("4",)),
    moved("103", Move.COMPLETE),
    closed("3"),
    closed("2"),
)


def broken(*facts: Fact) -> list[str]:
    """The promises that these facts break, after a sound beginning."""
    return [
        breach.promise
        for breach in broken_by(History(), [(float(n), f) for n, f in enumerate((*BEGINNING, *facts))])
    ]


def test_a_true_history_breaks_no_promise():
    """Successors that wait, pairs that share a GPU, and jobs that end break no promise."""
    assert broken(*GOOD) == []


@pytest.mark.parametrize(
    ("promise", "facts"),
    [
        (
            "two_holders",
            (granted(lease("1", "101"), lease("2", "102", "n1:0 n1:1")), LeasesStarted(leases=("1", "2"))),
        ),
        (
            "two_holders",
            (
                granted(lease("1", "101"), lease("2", "102"), lease("3", "103")),
                LeasesStarted(leases=("1", "2", "3")),
            ),
        ),
        (
            "two_attempts",
            (granted(lease("1", "101"), lease("2", "101", "n1:1", 2)), LeasesStarted(leases=("1", "2"))),
        ),
        ("two_ends", (moved("101", Move.CANCEL), moved("101", Move.COMPLETE))),
        ("two_ends", (moved("101", Move.CANCEL), granted(lease("1", "101")))),
        ("stale_attempt", (granted(lease("1", "101")), closed("1"), granted(lease("2", "101")))),
        (
            "stale_attempt",
            (granted(lease("1", "101", epoch=2)), closed("1"), granted(lease("2", "101", attempt=2))),
        ),
        ("unknown", (moved("z", Move.CANCEL),)),
        ("unknown", (granted(lease("1", "z")),)),
        ("unknown", (granted(lease("1", "101", "n2:0")),)),
        ("unknown", (closed("1"),)),
        ("unknown", (LeasesStarted(leases=("1",)),)),
        ("unknown", (JobSubmitted(job="101", spec=JobSpec()),)),
    ],
)
def test_each_broken_promise_is_named(promise: str, facts: tuple[Fact, ...]):
    """For one forged fact, the promise that it breaks is named."""
    assert promise in broken(*facts)


def test_a_broken_promise_comes_with_the_story_of_the_job(wording):
    """The breach has the promise, and the facts about the job until then, in order."""
    facts = (*BEGINNING, moved("101", Move.CANCEL), moved("101", Move.COMPLETE))
    (breach,) = broken_by(History(), [(float(n), fact) for n, fact in enumerate(facts)])
    assert breach.promise == "two_ends"
    wording(breach)
    assert breach.story == ("1.000 submitted", "4.000 cancel", "5.000 complete")


def test_a_history_may_begin_at_a_snapshot():
    """The state of a snapshot stands for the facts before it, so promises about these facts are checked, too."""
    from scheduler.core.apply import apply

    state = SchedulerState()
    for n, fact in enumerate((*BEGINNING, granted(lease("1", "101")), LeasesStarted(leases=("1",)))):
        apply(state, float(n), fact)
    history = History(state)
    assert broken_by(history, [(9.0, closed("1")), (9.0, granted(lease("2", "101", attempt=2)))]) == []
    assert [breach.promise for breach in broken_by(History(state), [(9.0, granted(lease("2", "101")))])] == [
        "stale_attempt"
    ]
