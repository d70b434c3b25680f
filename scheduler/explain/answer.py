"""What an explanation consists of. Programs read `reason` and the fields; `text` is for people.

WARNING: reason codes are read by other people's programs. One that was once released keeps its meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from scheduler.model.jobs import JobState

Sure = Literal["sure", "likely", "rough", "unknown"]
Basis = Literal[
    "",
    "lease_granted",  # it has its GPUs, or the leases that still hold them are ending
    "next_round",  # the next round begins then, and nobody is in the way
    "next_allocation",  # its share is worked out first
    "earliest_start",
    "dependency_ends",
    "shares",  # its due grows by its share, and those with a higher claim go first
    "jobs_end",  # enough GPUs are free when running jobs have done their steps
    "minimum_run_ends",
]


class Reason(StrEnum):
    """The one dominant reason, as a code."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    # has or had GPUs
    RUNNING = "running"
    RUNNING_BACKFILL = "running_backfill"  # on GPUs that nobody was due
    EXPLORING = "exploring"  # to learn how fast it is there
    STARTING = "starting"  # its nodes have the lease and have not said yet that it runs
    GPUS_STILL_BUSY = "gpus_still_busy"  # its lease waits for the exit of others
    STOPPING = "stopping"  # gives its GPUs up
    NODE_SILENT = "node_silent"  # its node cannot be reached
    # waits
    DEPENDENCY = "dependency"
    EARLIEST_START = "earliest_start"
    RETRY_PAUSE = "retry_pause"  # its last attempts failed, and the next one waits a while
    NO_NODES = "no_nodes"  # no usable node of a worker type that it may use
    NO_FITTING_NODE = "no_fitting_node"  # usable ones are there, none has what it asks for
    CHECKPOINT_ELSEWHERE = (
        "checkpoint_elsewhere"  # only nodes that are away, or busy, see its last checkpoint
    )
    TOO_WIDE_NOW = "too_wide_now"  # there are some, not enough
    NO_RATE = "no_rate"  # nothing says that it can run there
    WAITING_FOR_ALLOCATION = "waiting_for_allocation"
    WAITING_FOR_ROUND = "waiting_for_round"
    NO_SHARE = "no_share"
    GANG_RESERVED = "gang_reserved"  # GPUs are held back for it
    RESERVED_FOR_OTHER = "reserved_for_other"  # free ones are held back for another
    FRAGMENTED = "fragmented"  # enough are free, not where it fits
    MINIMUM_RUN_OF_OTHERS = "minimum_run_of_others"
    PREEMPTION_LIMIT = "preemption_limit"
    TURN_OF_OTHERS = "turn_of_others"


_R = Reason
_LEASED = frozenset(
    {
        *(_R.RUNNING, _R.RUNNING_BACKFILL, _R.EXPLORING, _R.STARTING),
        *(_R.GPUS_STILL_BUSY, _R.STOPPING, _R.NODE_SILENT),
    }
)
_ENDED = frozenset({_R.COMPLETED, _R.FAILED, _R.CANCELLED})
_WAITS = frozenset(Reason) - _LEASED - _ENDED - {_R.HELD}

# The reasons that a job in each state can have.
REASONS: dict[JobState, frozenset[Reason]] = {
    JobState.QUEUED: _WAITS,
    JobState.PREEMPTED: _WAITS,
    JobState.RUNNING: _LEASED,
    JobState.HELD: frozenset({_R.HELD}),
    JobState.COMPLETED: frozenset({_R.COMPLETED}),
    JobState.FAILED: frozenset({_R.FAILED}),
    JobState.CANCELLED: frozenset({_R.CANCELLED}),
}


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that holds GPUs of a worker type, or has them promised."""

    job: str
    gpus: int
    until_s: float | None = (
        None  # all its steps are done then if it runs on, or its lease ends; None: unknown
    )
    kept_until_s: float | None = None  # its minimum run time; nobody takes its GPUs before
    preemptible: bool = True
    stopping: bool = False


class Way(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to run the job, and what stands in it. Times are of the recent past: older ones fade."""

    worker_type: str
    gpus: int
    label: str = ""
    with_job: str = ""  # the partner it would share the GPUs with
    rate: float = 0.0  # steps per second
    guessed: bool = False  # the rate is a mere guess
    share: float = 0.0  # of wall-clock time, in the allocation in force
    entitled_s: float = 0.0
    received_s: float = 0.0
    backfill: bool = False  # may take GPUs that nobody is due
    price_per_gpu: float | None = None  # what one more GPU would add to the policy's objective; None: unknown
    gpus_total: int = 0  # of the worker type, usable now
    gpus_free: int = 0  # of these, neither held nor promised
    gpus_fitting: int = 0  # of the free ones, on nodes with what the job asks for
    held_by: tuple[Holder, ...] = ()  # some of them, those with most GPUs first
    holders: int = 0  # all of them
    reserved_for: str = ""  # the job that free GPUs of the type are held back for


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that would change the answer."""

    what: str  # a stable code
    text: str
    at_s: float | None = None  # when it is expected; None: when somebody does it


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job is where it is. Times are seconds of the scheduler's clock."""

    job: str
    state: JobState
    at_s: float
    reason: Reason
    text: str
    others: tuple[str, ...] = ()  # jobs that the text is about, some of them
    evidence: tuple[Way, ...] = ()  # those with a share first
    ways: int = 0  # all there are
    would_change: tuple[Change, ...] = ()
    expected_start_s: float | None = None
    start_basis: Basis = ""
    start_sure: Sure = "unknown"
