"""The parts of an explanation: `reason` and the fields for programs, `text` for people.

WARNING: users' programs read reason codes. A code that was once released keeps its meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from scheduler.model.jobs import JobState
from scheduler.model.launch import TerminalUse

Sure = Literal["sure", "likely", "rough", "unknown"]
Basis = Literal[
    "",
    # It has a lease. It waits at most for other leases that are ending and hold its GPUs until then.
    "lease_granted",
    # No other job is in the way, so it starts with the next round.
    "next_round",
    # Its share has to be computed first.
    "next_allocation",
    "earliest_start",
    "dependency_ends",
    # Jobs with a higher claim go first; the claim of this job grows with its share.
    "shares",
    # It starts when running jobs have done their steps, so that enough GPUs are free.
    "jobs_end",
    "minimum_run_ends",
    # A budget is renewed.
    "budget_renewed",
]


class Reason(StrEnum):
    """The one dominant reason, as a code. In the comments, "it" is the job that is explained."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    # The job has or had GPUs:
    RUNNING = "running"
    # It runs on GPUs that were due to no job.
    RUNNING_BACKFILL = "running_backfill"
    # It runs so that its rate on this worker type gets measured.
    EXPLORING = "exploring"
    # Its nodes have received the lease, but have not reported yet that it runs.
    STARTING = "starting"
    # Its lease waits for the exit of other jobs.
    GPUS_STILL_BUSY = "gpus_still_busy"
    # It is giving up its GPUs.
    STOPPING = "stopping"
    # Its node cannot be reached.
    NODE_SILENT = "node_silent"
    # The job waits:
    DEPENDENCY = "dependency"
    EARLIEST_START = "earliest_start"
    # Its last attempts failed, and the next one has to wait.
    RETRY_PAUSE = "retry_pause"
    # There is no usable node of a worker type that it may use.
    NO_NODES = "no_nodes"
    # There are usable nodes, but none has what it asks for.
    NO_FITTING_NODE = "no_fitting_node"
    # Only nodes that are away or busy can reach its last checkpoint.
    CHECKPOINT_ELSEWHERE = "checkpoint_elsewhere"
    # There are GPUs that it could use, but not enough.
    TOO_WIDE_NOW = "too_wide_now"
    # No rate of it is known on any worker type that it may use.
    NO_RATE = "no_rate"
    # The quotas of its tenants and user admit fewer GPUs than it needs, whatever runs.
    TOO_WIDE_FOR_QUOTA = "too_wide_for_quota"
    # Other jobs of its tenant or user use up their quota on GPUs.
    QUOTA_GPUS = "quota_gpus"
    # A budget of its tenants or user does not admit another round.
    QUOTA_BUDGET = "quota_budget"
    # Other jobs of its tenant or user run, and their quota admits no more running jobs.
    QUOTA_JOBS = "quota_jobs"
    WAITING_FOR_ALLOCATION = "waiting_for_allocation"
    WAITING_FOR_ROUND = "waiting_for_round"
    NO_SHARE = "no_share"
    # GPUs are held back for it.
    GANG_RESERVED = "gang_reserved"
    # Free GPUs are held back for another job.
    RESERVED_FOR_OTHER = "reserved_for_other"
    # Enough GPUs are free, but not on nodes that it can use.
    FRAGMENTED = "fragmented"
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
    """A job that holds GPUs of a worker type, or waits for GPUs that were promised to it."""

    job: str
    gpus: int
    # When it frees its GPUs: when its steps are done if it keeps running, or when its ending lease ends. None: unknown.
    until_s: float | None = None
    # The end of its minimum run time, before which no other job can take its GPUs.
    kept_until_s: float | None = None
    preemptible: bool = True
    stopping: bool = False


class Way(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to run the job, and what stands in its way."""

    worker_type: str
    gpus: int
    label: str = ""
    # The partner with which the job is packed.
    with_job: str = ""
    # In steps per second.
    rate: float = 0.0
    # Whether the rate is a guess.
    guessed: bool = False
    # The share of wall-clock time in the allocation in force.
    share: float = 0.0
    # The time that the job was due and the time that it received in this way. Both decay: recent rounds count most.
    entitled_s: float = 0.0
    received_s: float = 0.0
    # Whether the job may fill idle GPUs in this way.
    backfill: bool = False
    # The value of one more GPU for the policy's objective. None: unknown.
    price_per_gpu: float | None = None
    # The GPUs of this worker type that can be used now.
    gpus_total: int = 0
    # The usable GPUs that are neither held nor promised.
    gpus_free: int = 0
    # The free GPUs on nodes that have what the job asks for.
    gpus_fitting: int = 0
    # Some of the holders, those with the most GPUs first.
    held_by: tuple[Holder, ...] = ()
    # The number of all holders.
    holders: int = 0
    # The job for which free GPUs of the type are held back.
    reserved_for: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that would change the answer."""

    # A stable code.
    what: str
    text: str
    # When the change is expected. None: unknown, or only a user or an operator can bring it about.
    at_s: float | None = None


class Updated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the job after its submission, by a user."""

    at_s: float
    by: str = ""
    # The changed fields with their values before and after.
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job waits, runs or has ended. Times are seconds of the scheduler's clock."""

    job: str
    state: JobState
    # The time for which this explanation holds.
    at_s: float
    reason: Reason
    text: str
    # Some of the jobs that the text is about.
    others: tuple[str, ...] = ()
    # Ways with a share first.
    evidence: tuple[Way, ...] = ()
    # The number of all ways.
    ways: int = 0
    would_change: tuple[Change, ...] = ()
    expected_start_s: float | None = None
    start_basis: Basis = ""
    start_sure: Sure = "unknown"
    # The newest last.
    updates: tuple[Updated, ...] = ()
    # The last lines that the last attempt printed, if it failed.
    last_lines: str = ""
    # How the terminal of an interactive job is used. Only a live scheduler knows it.
    terminal: TerminalUse | None = None
