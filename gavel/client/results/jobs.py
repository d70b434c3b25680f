"""Results of calls about jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gavel.client.jobs.spec import JobSpec
from gavel.client.results.states import JobState
from gavel.client.shown import Shown


@dataclass(frozen=True, slots=True)
class TerminalUse:
    """How the terminal of an interactive job is used."""

    # Whether a client is attached.
    attached: bool
    # How long the job continues without a client; None: not known yet.
    keep_s: float | None
    # When the job gets SIGHUP unless a client attaches.
    until: datetime | None


@dataclass(frozen=True, slots=True)
class PackedRate:
    """The rate of a job beside the one with which it shares GPUs, and where it comes from."""

    steps_per_s: float
    source: str  # "table", "measured" or "estimated"
    # The standard deviation of an estimated rate.
    sd_steps_per_s: float


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
    # The label of the plan by which the job runs; empty if it has no plans.
    plan: str = ""
    terminal: TerminalUse | None = None  # only for interactive jobs
    # Since when all its GPUs have been idle, without a step; None: they are not, or not for long.
    idle_since: datetime | None = None
    # The rate with which the scheduler counts beside `with_job`; None: the job is alone, or the rate is unknown.
    packed_rate: PackedRate | None = None

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
    # Values that the job has measured about itself, to 5 %, such as `step_s` and `final_save_s`.
    measured: Mapping[str, float] = field(default_factory=dict)

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
