"""Results of calls about the cluster: its nodes, policy, rounds and usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gavel.client.results.states import NodeState
from gavel.client.shown import Shown


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
class Quota:
    """Upper limits; what is absent is not limited."""

    # GPUs held at once, by worker type; "*": all types together.
    gpus: Mapping[str, int] = field(default_factory=dict)
    # GPU-hours, and the cost of GPUs, in a period: "day", "week" or "month", in UTC.
    gpu_hours: Mapping[str, float] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    # What jobs beyond these two do: "wait", or "backfill" GPUs that are due to no job.
    beyond: str = "wait"
    # Jobs that hold GPUs at once, and jobs that have not ended.
    jobs_running: int | None = None
    jobs_unfinished: int | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a tenant or, with `user`, of one of its users, and what is used of it."""

    user: str
    # "gpus", "jobs_running", "jobs_unfinished", "gpu_hours" or "cost".
    resource: str
    # Of GPUs: the worker type, or "*" for all types together. Of a budget: the period.
    of: str
    limit: float
    used: float
    # Of a budget: when the next period begins.
    renews_at: datetime | None = None
    # Of a budget: what is set aside for jobs that run, until their round ends and they have stopped.
    committed: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `Client.set_tenants` takes the first five fields and the version."""

    name: str
    weight: float = 1.0
    policy: str = "fairness"
    # What its jobs and those of all tenants below it may use together, and what each of their users may use of it.
    quota: Quota = Quota()
    each_user: Quota = Quota()
    # Whether it is declared. If not, only jobs name it.
    declared: bool = False
    # The numbers of jobs of this tenant and those below it.
    jobs_unfinished: int = 0
    jobs_running: int = 0
    limits: tuple[Limit, ...] = ()
    # The version of the declaration. `set_tenants` refuses to replace another one; empty: it replaces any.
    version: str = ""


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
class MatrixCell:
    """The recent GPU seconds of a worker type that a job or tenant was due, and those that it received."""

    worker_type: str
    due_s: float
    received_s: float
    # On which processes run now.
    gpus: int


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A job, or all jobs of a tenant, with a cell for each worker type that it was due or received."""

    # Empty: all jobs of the tenant.
    job: str
    name: str
    tenant: str
    # How many there are.
    jobs: int
    cells: tuple[MatrixCell, ...]

    @property
    def gap_s(self) -> float:
        """Recent GPU seconds received minus those due."""
        return sum(cell.received_s - cell.due_s for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Recent GPU time by job or tenant and worker type, the rows furthest behind first."""

    rows: tuple[MatrixRow, ...]
    # By worker type, what one more GPU would add to the policy's objective.
    price_per_gpu: Mapping[str, float]
    next_page_token: str


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
    source: str  # "table", "measured" or "estimated"
    measured_s: float  # stepping time measured
    with_job_type: str  # shares the GPUs
    # The standard deviation of an estimated rate.
    sd_steps_per_s: float


@dataclass(frozen=True, slots=True)
class Channel:
    """A webhook that receives events. For users who are no operators, the fields after `for_jobs` are empty."""

    name: str
    # Whether jobs may choose it.
    for_jobs: bool
    # Without its path.
    url: str
    events: tuple[str, ...]
    is_signed: bool
    # How many events wait, and how many of these will be sent as a number only.
    waiting: int
    counted: int
    # The last success and the last failure since the start of the scheduler.
    succeeded: datetime | None
    failed: datetime | None
    # Why the last try failed; empty if it did not.
    error: str
