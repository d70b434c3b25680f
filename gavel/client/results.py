"""What the scheduler answers: plain values. Times are aware datetimes in UTC; `*_s` are durations in seconds.

WARNING: the names of these fields are the keys of `gavel … --json`. One that was once released keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gavel.client.jobs.spec import JobSpec


class JobState(StrEnum):
    """Where a job is in its life."""

    UNKNOWN = "unknown"  # told by a scheduler newer than this client
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it stays so."""
        return self in FINAL


FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
ACTIVE = (JobState.RUNNING, JobState.QUEUED, JobState.PREEMPTED, JobState.HELD)


class NodeState(StrEnum):
    """How a node is."""

    UNKNOWN = "unknown"
    UP = "up"
    DRAINING = "draining"
    SILENT = "silent"
    LOST = "lost"
    FAULTY = "faulty"


class Role(StrEnum):
    """What a token allows."""

    UNKNOWN = "unknown"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs."""

    worker_type: str
    gpus: tuple[str, ...]  # "node:index", in the order of ranks
    with_job: str
    since: datetime | None
    until: datetime | None
    phase: str
    lease: str
    rate: float  # measured steps per second; 0: not yet

    @property
    def nodes(self) -> tuple[str, ...]:
        """Each node once, in the order of ranks."""
        return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in self.gpus))


@dataclass(frozen=True, slots=True)
class Job:
    """A job, and what became of it."""

    id: str
    spec: JobSpec
    state: JobState
    why: str  # the reason for its last move
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    steps_done: float
    steps_saved: float
    run_s: float
    attempt: int
    failures: int
    node_failures: int
    preemptions: int
    cost: float
    blocked_by: tuple[str, ...]
    placement: Placement | None
    exit_code: int | None
    last_lines: str
    time_s: Mapping[str, float]
    array_index: int | None
    gpu_s: Mapping[str, float]
    nodes: tuple[str, ...]  # of its attempts, the latest first; only of jobs that have ended

    @property
    def progress(self) -> float | None:
        """The part that is done, from 0 to 1; None where the number of steps is unknown."""
        if self.state is JobState.COMPLETED:
            return 1.0
        return min(self.steps_done / self.spec.steps, 1.0) if self.spec.steps else None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs of a list."""

    jobs: tuple[Job, ...]
    next_page_token: str
    total: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A job as it is now. `all_present`: no job; everything that was there at the beginning has been said."""

    job: Job | None
    at: datetime | None
    present: bool
    all_present: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A way to run a job that was not submitted."""

    worker_type: str
    gpus: int
    gpus_fitting: int
    gpus_free: int
    rate: float
    rate_guessed: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of a job."""

    accepted: bool
    refused_field: str
    refused_why: str
    places: tuple[Place, ...]
    expected_start: datetime | None
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is. docs/explain.md has the reasons and the details."""

    job: str
    state: JobState
    reason: str
    text: str
    details: Mapping[str, Any]
    expected_start: datetime | None
    rendered: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Some of what one rank printed in one attempt; or a notice for the reader instead."""

    job: str
    attempt: int
    rank: int
    node: str
    offset: int
    data: bytes
    notice: str


@dataclass(frozen=True, slots=True)
class Status:
    """How the scheduler is."""

    version: str
    epoch: int
    started: datetime | None
    now: datetime | None
    policy: str
    round: int
    round_ends: datetime | None
    jobs: Mapping[str, int]
    nodes: int
    gpus: int
    gpus_busy: int
    stopping: bool
    warnings: tuple[str, ...]
    data_dir: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a node."""

    index: int
    name: str
    uuid: str
    memory_gb: float
    memory_used_gb: float
    temperature_c: float
    broken: str
    jobs: tuple[str, ...]
    withheld: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A node."""

    name: str
    worker_type: str
    state: NodeState
    why: str
    since: datetime | None
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str]
    cpus: float
    memory_gb: float
    agent_version: str
    storage: str
    heard: datetime | None
    driver_version: str
    drained: bool
    speed: float
    containment: str
    back: datetime | None = None  # of a faulty node: when it is tried again by itself


@dataclass(frozen=True, slots=True)
class Policy:
    """Which policy divides the cluster, and which could."""

    policy: str
    available: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What one way of running is entitled to."""

    jobs: tuple[str, ...]
    worker_type: str
    gpus: int
    label: str
    share: float
    entitled_s: float
    received_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """Who is entitled to how much, as solved last."""

    number: int
    policy: str
    adopted: datetime | None
    failed: str
    optimal: bool
    notes: tuple[str, ...]
    shares: tuple[Share, ...]
    price_per_gpu: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A job in a round."""

    job: str
    worker_type: str
    gpus: tuple[str, ...]
    with_job: str
    renewed: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A round as it was planned."""

    number: int
    starts: datetime | None
    ends: datetime | None
    runs: tuple[Run, ...]
    idle_gpus: tuple[str, ...]
    moved: int
    renewed: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What somebody used."""

    who: str
    gpu_s: Mapping[str, float]  # by worker type
    cost: float
    jobs: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast jobs of a type run, as believed."""

    job_type: str
    gpus: int
    worker_type: str
    steps_per_s: float
    source: str
    measured_s: float
    with_job_type: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Who you are to the scheduler."""

    user: str
    role: Role
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    created: datetime | None
    expires: datetime | None
    used: datetime | None
    revoked: bool
    note: str


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token, and its secret, which is shown once."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class JoinToken:
    """With which one node gets its certificate, once."""

    secret: str
    expires: datetime | None
    ca_fingerprint: str


@dataclass(frozen=True, slots=True)
class RevokedNode:
    """A node whose certificates count no more."""

    node: str
    was_linked: bool


@dataclass(frozen=True, slots=True)
class NodeRevocation:
    """A node of which no certificate from before `revoked` counts."""

    node: str
    revoked: datetime | None
    joined_again: bool  # it has got a certificate since then, which counts
