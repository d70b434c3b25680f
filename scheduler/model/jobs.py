"""Jobs: what was asked for, and the life of it as a table.

Rules that the table keeps:
- a terminal state never changes;
- only the scheduler starts, preempts, retries and fails a job; only an agent's report completes one;
- a held job keeps what it has done, and waits for a person.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec, Refused
from scheduler.model.launch import Launch


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"  # waiting, has not run since it was (re)queued
    RUNNING = "running"  # holds a lease
    PREEMPTED = "preempted"  # ran, gave its GPUs up, waits for the next turn
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
WAITING = frozenset({JobState.QUEUED, JobState.PREEMPTED})


class Move(StrEnum):
    """What can happen to a job."""

    START = "start"
    PREEMPT = "preempt"
    RETRY = "retry"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


# by names of their own, for what happens with every lease: to find a member in its Enum takes five times as long
RUNS, PREEMPTED = JobState.RUNNING, JobState.PREEMPTED
START, PREEMPT = Move.START, Move.PREEMPT


class Rule(NamedTuple):
    """One row of the table."""

    to: JobState
    who: Literal["scheduler", "agent", "user"]
    why: str


_S, _M = JobState, Move
TRANSITIONS: dict[tuple[JobState, Move], Rule] = {
    (_S.QUEUED, _M.START): Rule(_S.RUNNING, "scheduler", "it was given GPUs"),
    (_S.PREEMPTED, _M.START): Rule(_S.RUNNING, "scheduler", "it was given GPUs again"),
    (_S.RUNNING, _M.PREEMPT): Rule(_S.PREEMPTED, "scheduler", "its turn is over, or its node is gone"),
    (_S.RUNNING, _M.RETRY): Rule(_S.QUEUED, "scheduler", "the attempt failed and another one is allowed"),
    (_S.RUNNING, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it did all its steps"),
    (_S.QUEUED, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it was done before it could be stopped"),
    (_S.PREEMPTED, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it was done before it could be stopped"),
    (_S.HELD, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it was done before it could be stopped"),
    (_S.RUNNING, _M.FAIL): Rule(
        _S.FAILED, "scheduler", "the attempt failed and none is left, or a limit was reached"
    ),
    (_S.QUEUED, _M.FAIL): Rule(_S.FAILED, "scheduler", "a job it depends on cannot succeed any more"),
    (_S.PREEMPTED, _M.FAIL): Rule(_S.FAILED, "scheduler", "a limit was reached while it waited"),
    (_S.HELD, _M.FAIL): Rule(_S.FAILED, "scheduler", "a job it depends on cannot succeed any more"),
    (_S.QUEUED, _M.HOLD): Rule(_S.HELD, "user", "hold; or nothing comes of its starts"),
    (_S.PREEMPTED, _M.HOLD): Rule(_S.HELD, "user", "hold; or nothing comes of its starts"),
    (_S.RUNNING, _M.HOLD): Rule(_S.HELD, "user", "hold: it checkpoints and gives its GPUs up"),
    (_S.HELD, _M.RELEASE): Rule(_S.QUEUED, "user", "release"),
    (_S.RUNNING, _M.REQUEUE): Rule(_S.QUEUED, "user", "requeue: stop it and wait for another turn"),
    (_S.QUEUED, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.PREEMPTED, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.HELD, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.RUNNING, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel: its processes are stopped"),
}


def after(state: JobState, move: Move) -> JobState:
    """The state a move leads to; Refused where the table has no such row."""
    rule = TRANSITIONS.get((state, move))
    if rule is None:
        raise Refused(f"a job that is {state} cannot {move}")
    return rule.to


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Wait for another job: until it succeeded, or until it ended one way or another."""

    job: str = ""
    when: Literal["succeeded", "ended"] = "succeeded"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a user asks for. Times are seconds, and count from the submission unless the name says otherwise."""

    name: str = ""
    job_type: str = ""  # jobs of one type share their measured rates
    gpus: int = 1
    gpus_min: int | None = None  # an elastic job may run on any width between these for which a rate is known
    gpus_max: int | None = None
    steps: float | None = None  # None: unknown
    weight: float = 1.0
    tenant: str = ""
    user: str = ""
    deadline_s: float | None = None
    earliest_start_s: float = 0.0
    time_limit_s: float | None = None  # of running, over all attempts
    min_run_s: float = 0.0  # once started, not preempted before
    worker_types: tuple[str, ...] = ()  # any of these; empty: any
    excluded_worker_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # only on these
    labels: dict[str, str] = {}  # only on nodes that carry all of these
    cpus: float = 0.0  # of the whole job; a gang over several nodes splits them by GPUs
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0  # each GPU has at least this
    retries: int = 0  # after failures of its own
    retries_node: int | None = None  # after failures of nodes; None: without limit
    retries_preemption: int | None = None
    preemptible: bool = True
    packable: bool = True
    reports_steps: bool = True
    restart_cost_s: float | None = None  # None: what the settings say
    rates: dict[str, float] = {}  # steps/s by worker type at the requested width, instead of the table's
    after: tuple[Dependency, ...] = ()
    array: tuple[int, ...] = ()  # one job per index; of such a job: its own index alone
    max_cost: float | None = None
    launch: Launch | None = None

    @property
    def narrowest(self) -> int:
        """The least width it may run at."""
        return self.gpus if self.gpus_min is None else self.gpus_min

    @property
    def widest(self) -> int:
        """The greatest width it may run at."""
        return self.gpus if self.gpus_max is None else self.gpus_max

    @property
    def is_picky(self) -> bool:
        """Whether it matters to the job which nodes it gets, beside their number of GPUs."""
        return bool(
            self.worker_types
            or self.excluded_worker_types
            or self.nodes
            or self.labels
            or self.cpus
            or self.memory_gb
            or self.gpu_memory_gb
        )

    @property
    def is_limited(self) -> bool:
        """Whether time or other jobs decide about it, beside the policy."""
        return bool(self.after or self.earliest_start_s) or not (self.time_limit_s is self.max_cost is None)

    def may_use(self, worker_type: str) -> bool:
        """Whether the user admits this worker type."""
        if self.worker_types and worker_type not in self.worker_types:
            return False
        return worker_type not in self.excluded_worker_types

    def checked(self) -> JobSpec:
        """This spec, or InvalidSpec naming the first field that cannot be right."""
        bounds.check_all(self, bounds.JOB)
        if not self.narrowest <= self.gpus <= self.widest:
            raise InvalidSpec(
                "gpus", f"is {self.gpus}, outside its own range {self.narrowest} to {self.widest}"
            )
        for field in ("name", "job_type", "tenant", "user"):
            bounds.check_text(field, getattr(self, field))
        for field in ("worker_types", "excluded_worker_types", "nodes"):
            _check_names(field, getattr(self, field))
        both = set(self.worker_types) & set(self.excluded_worker_types)
        if both:
            raise InvalidSpec("excluded_worker_types", f"'{sorted(both)[0]}' is also among worker_types")
        if self.labels:
            _check_labels(self.labels)
        if self.rates:
            bounds.check_each("rates", self.rates, bounds.RATE)
        if self.after:
            _check_after(self.after)
        if self.array:
            _check_array(self.array)
        return self


def _check_names(field: str, names: tuple[str, ...]) -> None:
    bounds.check_count(field, names, bounds.ENTRIES_MAX)
    for at, name in enumerate(names):
        bounds.check_name(f"{field}[{at}]", name)


def _check_labels(labels: dict[str, str]) -> None:
    bounds.check_count("labels", labels, bounds.ENTRIES_MAX)
    for key, value in labels.items():
        bounds.check_name("labels", key)
        bounds.check_text(f"labels.{key}", value)


def _check_after(after: tuple[Dependency, ...]) -> None:
    bounds.check_count("after", after, bounds.ENTRIES_MAX)
    for at, dependency in enumerate(after):
        bounds.check_name(f"after[{at}].job", dependency.job)
        if dependency.when not in ("succeeded", "ended"):
            raise InvalidSpec(f"after[{at}].when", "must be 'succeeded' or 'ended'")


def _check_array(array: tuple[int, ...]) -> None:
    bounds.check_count("array", array, bounds.ARRAY_MAX)
    for index in (min(array), max(array)):
        bounds.check("array", index, bounds.INDEX)
    if len(set(array)) != len(array):
        raise InvalidSpec("array", "must be different numbers")


class Job(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job as the scheduler keeps it."""

    id: str
    spec: JobSpec
    submitted_s: float
    order: int  # of submission; with `submitted_s` the order of arrival
    state: JobState = JobState.QUEUED
    why: str = ""  # the reason for the last move
    lease: str | None = None  # what it runs on, or will as soon as its GPUs are free
    leaving: str | None = None  # the lease that is ending; may outlive a terminal state
    attempt: int = 0  # how often it was given a lease
    steps_done: float = 0.0  # as last reported
    steps_saved: float = 0.0  # in a checkpoint: what survives a crash
    isolated_s: float = 0.0  # time the finished part would have taken at the isolated share
    run_s: float = 0.0  # with processes, over closed leases
    started_s: float | None = None  # first start
    ended_s: float | None = None
    failures: int = 0  # of its own
    node_failures: int = 0
    preemptions: int = 0
    unstarted: int = 0  # starts in a row of which nothing came
    fruitless: int = 0  # turns that were over before it had done a step, though it tells steps
    cost_usd: float = 0.0
    checkpoint_at: str = ""  # the place of its last checkpoint (`NodeSpec.place`); empty: none, or anywhere
    checkpoint_beside: tuple[
        str, ...
    ] = ()  # of a gang wider than that place: those of its other ranks, in order
    blocked_by: set[str] = msgspec.field(default_factory=set)  # dependencies that are still open
    time_s: dict[str, float] = msgspec.field(default_factory=dict)  # `run_s` by worker type
    gpu_s: dict[str, float] = msgspec.field(default_factory=dict)  # the same times the GPUs it held
    last_exit: int | None = None  # of the last attempt that failed
    last_lines: str = ""  # of what it printed
    failed_on: tuple[str, ...] = ()  # nodes of starts in a row that failed, each once
    pauses: int = 0  # failed attempts in a row, none of which ran for long
    again_s: float = 0.0  # not to be started before, after a failed attempt

    @property
    def is_terminal(self) -> bool:
        """Whether its life is over."""
        return self.state in TERMINAL

    @property
    def is_watched(self) -> bool:
        """Whether time or other jobs decide about it, or did after a failed attempt."""
        return self.spec.is_limited or self.again_s > 0

    @property
    def clings(self) -> bool:
        """Whether it may keep its GPUs when its turn is over."""
        return bool(self.spec.min_run_s or self.fruitless) or not self.spec.preemptible

    @property
    def steps_left(self) -> float:
        """What remains by the last report; inf when the total is unknown."""
        if self.spec.steps is None:
            return math.inf
        return max(self.spec.steps - self.steps_done, 0.0)
