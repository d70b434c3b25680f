"""The results of calls, as plain values. Times are aware datetimes in UTC; `*_s` are durations in seconds.

WARNING: the names of these fields are the keys of `gavel … --json`. A released field keeps its name and meaning. The
comments in jobs.proto and cluster.proto explain every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gavel.client.jobs.spec import JobSpec
from gavel.client.shown import Shown


class JobState(StrEnum):
    """The state of a job."""

    # A state that only schedulers newer than this client have.
    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether a job in this state has ended."""
        return self in FINAL


FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
ACTIVE = (JobState.RUNNING, JobState.QUEUED, JobState.PREEMPTED, JobState.HELD)


class NodeState(StrEnum):
    """The state of a node."""

    UNKNOWN = "unknown"
    UP = "up"
    DRAINING = "draining"
    SILENT = "silent"
    LOST = "lost"
    FAULTY = "faulty"


class Role(StrEnum):
    """The role of a user; it determines the calls that a token allows."""

    UNKNOWN = "unknown"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs on which a job runs, and its lease of them."""

    worker_type: str
    # As "node:index", in the order of ranks.
    gpus: tuple[str, ...]
    with_job: str  # shares the GPUs
    since: datetime | None  # start of its processes
    until: datetime | None  # end of the lease
    phase: str  # "waiting", "sent", "running", "stopping"
    lease: str
    # Measured steps per second; 0 until they are measured.
    rate: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """The job's nodes, each once, in the order of ranks."""
        return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in self.gpus))


@dataclass(frozen=True, slots=True, repr=False)
class Job(Shown):
    """A job: its description, its state and its history so far."""

    id: str
    spec: JobSpec
    state: JobState
    # The reason for the last change of state.
    why: str
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    steps_done: float
    steps_saved: float  # in the last checkpoint
    run_s: float  # without the current lease
    attempt: int  # number of attempts
    failures: int  # of the job itself
    node_failures: int
    preemptions: int
    cost: float  # without the current lease
    blocked_by: tuple[str, ...]  # jobs still waited for
    placement: Placement | None
    exit_code: int | None  # of the last failure
    last_lines: str  # of the last failure
    time_s: Mapping[str, float]  # `run_s` by worker type
    array_index: int | None
    gpu_s: Mapping[str, float]  # GPU seconds by type
    # The nodes of its attempts, the latest first; only for jobs that have ended.
    nodes: tuple[str, ...]

    @property
    def progress(self) -> float | None:
        """The fraction of its steps that are done, from 0 to 1; None if the number of its steps is unknown."""
        if self.state is JobState.COMPLETED:
            return 1.0
        return min(self.steps_done / self.spec.steps, 1.0) if self.spec.steps else None


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list of jobs."""

    jobs: tuple[Job, ...]
    next_page_token: str
    total: int  # jobs on all pages


@dataclass(frozen=True, slots=True)
class JobEvent:
    """The state of a job; or, if `all_present` is true, a mark: the jobs present at the start have all been sent."""

    job: Job | None
    at: datetime | None  # time of the change
    present: bool  # state at the start
    all_present: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A worker type and number of GPUs on which a previewed job could run."""

    worker_type: str
    gpus: int
    # GPUs of this type on nodes that meet the job's requirements, and how many of these are free.
    gpus_fitting: int
    gpus_free: int
    rate: float  # steps per second
    rate_guessed: bool  # neither given nor measured
    nodes: tuple[str, ...]  # some suitable nodes


@dataclass(frozen=True, slots=True)
class Preview:
    """The forecast for a job that is not submitted yet: accepted or refused, where it could run, and when."""

    accepted: bool
    refused_field: str
    refused_why: str
    places: tuple[Place, ...]
    expected_start: datetime | None
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The reason why a job runs, waits or has ended. docs/explain.md lists all reasons and details."""

    job: str
    state: JobState
    reason: str
    text: str
    details: Mapping[str, Any]
    expected_start: datetime | None
    rendered: str  # the explanation as text


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of the output of one rank in one attempt, or a notice for the reader."""

    job: str
    attempt: int
    rank: int
    node: str
    offset: int  # of `data`, in bytes
    data: bytes
    notice: str  # text instead of data


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the scheduler."""

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
    broken: str  # reason; empty: in service
    jobs: tuple[str, ...]
    # Whether it gets no jobs because an ended job may have left processes on it.
    withheld: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `back` is the time at which the scheduler tries a faulty node again."""

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
    # Nodes with the same value see the same checkpoints.
    storage: str
    heard: datetime | None  # last message from agent
    driver_version: str
    drained: bool
    speed: float  # 0: real GPUs
    containment: str  # such as "cgroup v2"
    # When the scheduler tries a faulty node again; None if that depends on its agent.
    back: datetime | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy in force, and the names of all policies."""

    policy: str
    available: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The share that one job, or two packed jobs, are entitled to on one worker type."""

    jobs: tuple[str, ...]
    worker_type: str
    gpus: int
    label: str  # variant of the placement
    share: float  # of wall-clock time
    # Recent time that it was entitled to, and that it received; older time counts less.
    entitled_s: float
    received_s: float
    rate: float  # of the first job


@dataclass(frozen=True, slots=True, repr=False)
class Allocation(Shown):
    """The share of the cluster that each job is entitled to, from the latest allocation."""

    number: int
    policy: str
    adopted: datetime | None  # start of its use
    failed: str  # reason; empty: not failed
    optimal: bool
    notes: tuple[str, ...]
    shares: tuple[Share, ...]
    # By worker type, what one more GPU would add to the policy's objective.
    price_per_gpu: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A job and the GPUs that it has in a round."""

    job: str
    worker_type: str
    gpus: tuple[str, ...]
    with_job: str  # shares the GPUs
    renewed: bool  # same GPUs as before


@dataclass(frozen=True, slots=True)
class Round:
    """A round: the jobs that run in it, and the idle GPUs."""

    number: int
    starts: datetime | None
    ends: datetime | None
    runs: tuple[Run, ...]
    idle_gpus: tuple[str, ...]
    # The leases that begin with this round, and those that continue from the previous one.
    moved: int
    renewed: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one user, tenant or job type."""

    who: str  # user, tenant or type
    gpu_s: Mapping[str, float]  # by worker type
    cost: float
    jobs: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The estimated speed of jobs of one type on one worker type."""

    job_type: str
    gpus: int
    worker_type: str
    steps_per_s: float
    source: str  # "table" or "measured"
    measured_s: float  # stepping time measured
    with_job_type: str  # shares the GPUs


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and role of a client."""

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
    """A new token and its secret, which no later call returns."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token that one node can exchange, once, for its certificate."""

    secret: str
    expires: datetime | None
    ca_fingerprint: str


@dataclass(frozen=True, slots=True)
class RevokedNode:
    """The result of revoking a node's certificates."""

    node: str
    # Whether its agent was linked when its certificates were revoked.
    was_linked: bool


@dataclass(frozen=True, slots=True)
class NodeRevocation:
    """A revoked node: its certificates from before `revoked` are not valid."""

    node: str
    revoked: datetime | None
    # Whether the node has received a valid certificate since then.
    joined_again: bool
