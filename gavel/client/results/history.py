"""Results of calls about the past."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease of a job: a turn on certain GPUs."""

    lease: str
    attempt: int
    round: int
    worker_type: str
    # As "node:index", in the order of ranks.
    gpus: tuple[str, ...]
    plan: str
    # The job with which it was packed when it was granted.
    with_job: str
    granted: datetime | None
    # None: no processes ran.
    started: datetime | None
    # None: it has not ended.
    ended: datetime | None
    # "finished", "yielded", "failed", "node_failed" or "dropped"; empty if it has not ended.
    outcome: str
    why: str
    exit_code: int
    run_s: float
    # The part of `run_s` that was spent on steps.
    stepping_s: float
    # Of the job, at the end of the lease.
    steps: float
    steps_saved: float
    # Under this lease; None: unknown.
    steps_made: float | None
    job: str

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, each once, in the order of ranks."""
        return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in self.gpus))

    @property
    def rate(self) -> float | None:
        """Steps per second of stepping; None if unknown."""
        return self.steps_made / self.stepping_s if self.steps_made is not None and self.stepping_s else None

    @property
    def steps_lost(self) -> float:
        """Steps after the last checkpoint, which a later attempt has to make again."""
        return self.steps - self.steps_saved if self.outcome in ("failed", "node_failed") else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """A page of the leases of a job, the latest first."""

    leases: tuple[LeaseRecord, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class LeasePage:
    """A page of the leases of all jobs, the latest end first; those that have not ended come before the others."""

    leases: tuple[LeaseRecord, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round that was planned."""

    number: int
    planned: datetime | None
    starts: datetime | None
    ends: datetime | None
    # Leases that begin with it, continue from the round before, and do not continue.
    granted: int
    renewed: int
    ended: int
    # Jobs, or pairs of jobs, whose turn it was, but which did not fit.
    skipped: int
    # The number of the allocation by which it was planned, and its policy; 0 and empty if there was none.
    allocation: int
    policy: str
    solve_s: float | None
    # Why the policy failed.
    failed: str


@dataclass(frozen=True, slots=True)
class RoundPage:
    """A page of rounds, the latest first."""

    rounds: tuple[RoundRecord, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class Account:
    """The GPU seconds of a worker type that a tenant was due, and those that it received, in a step."""

    starts: datetime | None
    tenant: str
    worker_type: str
    due_s: float
    received_s: float


@dataclass(frozen=True, slots=True)
class Shares:
    """The GPU time that tenants were due and received, by step, tenant and worker type."""

    accounts: tuple[Account, ...]
    since: datetime | None
    until: datetime | None
    step_s: float


@dataclass(frozen=True, slots=True)
class WholeTime:
    """The seconds of all GPUs of a worker type, a node or the cluster."""

    # `held_s` - `shared_s` + the other four.
    all_s: float
    # Counted twice in `held_s`, because two packed jobs held the same GPUs.
    shared_s: float
    free_s: float
    # Faulty GPUs and nodes, and GPUs with processes of ended jobs.
    broken_s: float
    unreachable_s: float
    drained_s: float


@dataclass(frozen=True, slots=True)
class GpuTimeRow:
    """How a user, tenant, job type, worker type, node or day used GPUs, in GPU seconds."""

    name: str
    # The sum of the next four.
    held_s: float
    # Steps that lasted.
    useful_s: float
    # Start-up, restoring and saving checkpoints.
    restart_s: float
    # Steps that did not last, because of a failure or a kill.
    lost_s: float
    # GPUs that were idle for long.
    idle_s: float
    # None unless by worker type, node or day, for all users.
    whole: WholeTime | None


@dataclass(frozen=True, slots=True)
class GpuTime:
    """How GPUs were used."""

    rows: tuple[GpuTimeRow, ...]
    # Later than requested if the history does not go back so far.
    since: datetime | None
    until: datetime | None
