"""Jobs: their specification, and their life cycle as a table of transitions.

The table obeys three rules:
- a terminal state never changes;
- only the scheduler starts, preempts, retries and fails a job; only an agent's report completes one;
- a held job keeps its progress and waits until a user releases it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from scheduler.model import bounds
from scheduler.model.changes import Update
from scheduler.model.errors import InvalidSpec, Refused
from scheduler.model.launch import Launch
from scheduler.model.notify import Notify, check_notify
from scheduler.model.plans import Plan, check_plans, check_source


class JobState(StrEnum):
    """The state of a job in its life cycle."""

    # Waiting, and has not run since it was submitted or requeued.
    QUEUED = "queued"
    # Holds a lease.
    RUNNING = "running"
    # It ran, gave up its GPUs, and waits for its next turn.
    PREEMPTED = "preempted"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
WAITING = frozenset({JobState.QUEUED, JobState.PREEMPTED})


class Move(StrEnum):
    """An event that moves a job from one state to another."""

    START = "start"
    PREEMPT = "preempt"
    RETRY = "retry"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


# Every lease uses these: a plain name is five times faster than looking the member up in its Enum.
RUNS, PREEMPTED = JobState.RUNNING, JobState.PREEMPTED
START, PREEMPT = Move.START, Move.PREEMPT


class Rule(NamedTuple):
    """A row of the table: the next state, the party that may cause the move, and a reason to show to users."""

    to: JobState
    who: Literal["scheduler", "agent", "user"]
    why: str


_S, _M = JobState, Move
TRANSITIONS: dict[tuple[JobState, Move], Rule] = {
    (_S.QUEUED, _M.START): Rule(_S.RUNNING, "scheduler", "it was given GPUs"),
    (_S.PREEMPTED, _M.START): Rule(_S.RUNNING, "scheduler", "it was given GPUs again"),
    (_S.RUNNING, _M.PREEMPT): Rule(_S.PREEMPTED, "scheduler", "its turn is over, or its node is gone"),
    (_S.RUNNING, _M.RETRY): Rule(_S.QUEUED, "scheduler", "the attempt failed and retries are left"),
    (_S.RUNNING, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it completed all its steps"),
    (_S.QUEUED, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it finished before it could be stopped"),
    (_S.PREEMPTED, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it finished before it could be stopped"),
    (_S.HELD, _M.COMPLETE): Rule(_S.COMPLETED, "agent", "it finished before it could be stopped"),
    (_S.RUNNING, _M.FAIL): Rule(
        _S.FAILED, "scheduler", "the attempt failed and no retries are left, or a limit was reached"
    ),
    (_S.QUEUED, _M.FAIL): Rule(_S.FAILED, "scheduler", "a job it depends on can no longer succeed"),
    (_S.PREEMPTED, _M.FAIL): Rule(_S.FAILED, "scheduler", "a limit was reached while it waited"),
    (_S.HELD, _M.FAIL): Rule(_S.FAILED, "scheduler", "a job it depends on can no longer succeed"),
    (_S.QUEUED, _M.HOLD): Rule(_S.HELD, "user", "hold, or its starts keep failing"),
    (_S.PREEMPTED, _M.HOLD): Rule(_S.HELD, "user", "hold, or its starts keep failing"),
    (_S.RUNNING, _M.HOLD): Rule(_S.HELD, "user", "hold: it checkpoints and gives up its GPUs"),
    (_S.HELD, _M.RELEASE): Rule(_S.QUEUED, "user", "release"),
    (_S.RUNNING, _M.REQUEUE): Rule(_S.QUEUED, "user", "requeue: it stops and waits for another turn"),
    (_S.QUEUED, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.PREEMPTED, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.HELD, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel"),
    (_S.RUNNING, _M.CANCEL): Rule(_S.CANCELLED, "user", "cancel: its processes are stopped"),
}


def after(state: JobState, move: Move) -> JobState:
    """Return the state that a move leads to, or raise Refused if the table has no such row."""
    rule = TRANSITIONS.get((state, move))
    if rule is None:
        raise Refused(f"a job that is {state} cannot {move}")
    return rule.to


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job that has to succeed, or to end in any way, before the dependent job may start."""

    job: str = ""
    when: Literal["succeeded", "ended"] = "succeeded"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job as its user submits it. Its deadline and earliest start are counted from the submission."""

    name: str = ""
    # Jobs of the same type share their measured rates.
    job_type: str = ""
    gpus: int = 1
    # An elastic job may run at any width in this range for which a rate is known.
    gpus_min: int | None = None
    gpus_max: int | None = None
    # The GPUs come in groups of this many, each on one node.
    gpus_together: int = 1
    steps: float | None = None  # None: unknown
    weight: float = 1.0
    tenant: str = ""
    user: str = ""
    deadline_s: float | None = None
    earliest_start_s: float = 0.0
    # Time with running processes, over all attempts.
    time_limit_s: float | None = None
    # Once started, the job is not preempted before this time has passed.
    min_run_s: float = 0.0
    worker_types: tuple[str, ...] = ()  # empty: any
    excluded_worker_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # empty: any
    # Only nodes that carry all of these labels.
    labels: dict[str, str] = {}
    # CPUs and memory are for the whole job. A gang on several nodes splits them in proportion to the GPUs on each node.
    cpus: float = 0.0
    memory_gb: float = 0.0
    # The least memory that each GPU must have.
    gpu_memory_gb: float = 0.0
    # Retries after failures of the job itself.
    retries: int = 0
    # Retries after failures of nodes, and after preemptions. None: no limit.
    retries_node: int | None = None
    retries_preemption: int | None = None
    preemptible: bool = True
    packable: bool = True
    reports_steps: bool = True
    # Its GPUs may be idle.
    idle_ok: bool = False
    restart_cost_s: float | None = None  # None: as in `Settings`
    # Steps/s by worker type at the requested width; they replace the table's rates.
    rates: dict[str, float] = {}
    after: tuple[Dependency, ...] = ()
    # A submission makes one job per index; each of these jobs keeps only its own index.
    array: tuple[int, ...] = ()
    max_cost: float | None = None
    launch: Launch | None = None
    # The job runs only by one of these plans, at the widths of its range.
    plans: tuple[Plan, ...] = ()
    # What clients computed the plans from. The scheduler only keeps it.
    plans_from: str = ""
    # The channels of operators that receive events of the job.
    notify: tuple[Notify, ...] = ()

    @property
    def narrowest(self) -> int:
        """The smallest number of GPUs that the job may run on."""
        return self.gpus if self.gpus_min is None else self.gpus_min

    @property
    def widest(self) -> int:
        """The largest number of GPUs that the job may run on."""
        return self.gpus if self.gpus_max is None else self.gpus_max

    @property
    def is_interactive(self) -> bool:
        """Whether the job has a terminal, and so one process, on one node."""
        return self.launch is not None and self.launch.terminal is not None

    def widths(self, most: int) -> range:
        """Return the numbers of GPUs, up to `most`, on which the job may run."""
        return range(self.narrowest, min(self.widest, most) + 1, self.gpus_together)

    def granule(self, gpus: int, worker_type: str) -> int:
        """Return how many of its GPUs must be together on one node if the job runs on these GPUs."""
        own = gpus if self.is_interactive else self.gpus_together
        plan = self.plan_for(worker_type, gpus)
        return own if plan is None else math.lcm(own, plan.gpus_together)

    def least_granule(self, worker_type: str) -> int:
        """Return the least number of GPUs of a type that must be together on one node, of all ways to run the job."""
        own = self.granule(self.narrowest, "")
        plans = (plan for plan in self.plans if plan.worker_type == worker_type)
        return min((self.granule(plan.gpus, worker_type) for plan in plans), default=own)

    @property
    def is_grouped(self) -> bool:
        """Whether several of its GPUs must be together on one node, in some way in which it may run."""
        own = self.granule(self.widest, "")
        return own > 1 or any(plan.gpus_together > 1 for plan in self.plans)

    @property
    def is_picky(self) -> bool:
        """Whether the job restricts its nodes by more than their number of GPUs."""
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
        """Whether the job has dependencies, an earliest start, a time limit or a cost limit."""
        return bool(self.after or self.earliest_start_s) or not (self.time_limit_s is self.max_cost is None)

    def widths_on(self, worker_type: str, most: int) -> Sequence[int]:
        """Return the numbers of GPUs of this type on which the job may run, in ascending order, up to `most`."""
        widths = self.widths(most)
        if not self.plans:
            return widths
        return sorted(p.gpus for p in self.plans if p.worker_type == worker_type and p.gpus in widths)

    def plan_for(self, worker_type: str, gpus: int) -> Plan | None:
        """Return the job's plan for these GPUs; None if it has none."""
        return next((p for p in self.plans if p.gpus == gpus and p.worker_type == worker_type), None)

    def may_use(self, worker_type: str) -> bool:
        """Whether the user allows this worker type."""
        if self.worker_types and worker_type not in self.worker_types:
            return False
        return worker_type not in self.excluded_worker_types

    def checked(self) -> JobSpec:
        """Return this spec, or raise InvalidSpec naming the first field that is wrong."""
        bounds.check_all(self, bounds.JOB)
        if not self.narrowest <= self.gpus <= self.widest:
            raise InvalidSpec("gpus", f"is {self.gpus}, outside the range {self.narrowest} to {self.widest}")
        for field in ("gpus", "gpus_min", "gpus_max"):
            _check_groups(field, getattr(self, field), self.gpus_together)
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
        if self.notify:
            check_notify(self.notify)
        if self.plans:
            self._check_plans()
        elif self.plans_from:
            raise InvalidSpec("plans_from", "has no effect without plans")
        return self

    def _check_plans(self) -> None:
        check_plans(self.plans)
        check_source(self.plans_from)
        if self.rates:
            raise InvalidSpec("rates", "cannot be given with plans, which have rates of their own")
        if not self.job_type:
            raise InvalidSpec("job_type", "is missing: the rates of plans are measured for a type of jobs")
        if all(plan.gpus != self.gpus for plan in self.plans):
            widths = ", ".join(map(str, sorted({plan.gpus for plan in self.plans})))
            raise InvalidSpec("gpus", f"is {self.gpus}, and the plans are for {widths}")


def _check_groups(field: str, gpus: int | None, together: int) -> None:
    """Raise InvalidSpec unless this number of GPUs can be divided into groups."""
    if gpus is not None and gpus % together:
        fewer = gpus - gpus % together
        nearest = f"{fewer} or {fewer + together}" if fewer else f"{together}"
        raise InvalidSpec(field, f"is {gpus}, no multiple of gpus_together ({together}); ask for {nearest}")


def _check_names(field: str, names: tuple[str, ...]) -> None:
    bounds.check_count(field, names, bounds.ENTRIES_MAX)
    for index, name in enumerate(names):
        bounds.check_name(f"{field}[{index}]", name)


def _check_labels(labels: dict[str, str]) -> None:
    bounds.check_count("labels", labels, bounds.ENTRIES_MAX)
    for key, value in labels.items():
        bounds.check_name("labels", key)
        bounds.check_text(f"labels.{key}", value)


def _check_after(after: tuple[Dependency, ...]) -> None:
    bounds.check_count("after", after, bounds.ENTRIES_MAX)
    for index, dependency in enumerate(after):
        bounds.check_name(f"after[{index}].job", dependency.job)
        if dependency.when not in ("succeeded", "ended"):
            raise InvalidSpec(f"after[{index}].when", "must be 'succeeded' or 'ended'")


def _check_array(array: tuple[int, ...]) -> None:
    bounds.check_count("array", array, bounds.ARRAY_MAX)
    for index in (min(array), max(array)):
        bounds.check("array", index, bounds.INDEX)
    if len(set(array)) != len(array):
        raise InvalidSpec("array", "must be different numbers")


class Job(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job in the scheduler's state."""

    id: str
    spec: JobSpec
    submitted_s: float
    # Its number in the order of submission.
    order: int
    state: JobState = JobState.QUEUED
    # The reason for its last change of state.
    why: str = ""
    # The lease on which the job runs, or will run as soon as the GPUs are free.
    lease: str | None = None
    # The lease that is ending. A terminal job may still have one.
    leaving: str | None = None
    # How many leases it has been granted.
    attempt: int = 0
    steps_done: float = 0.0  # as last reported
    # Steps saved in a checkpoint, which survive a crash.
    steps_saved: float = 0.0
    # How long its finished steps would have taken at its isolated rate (`SchedulerState.isolated_rate`).
    isolated_s: float = 0.0
    # Time with running processes, over all closed leases.
    run_s: float = 0.0
    started_s: float | None = None  # first start
    ended_s: float | None = None
    failures: int = 0  # of the job itself
    node_failures: int = 0
    preemptions: int = 0
    # How many starts in a row failed before any process ran.
    unstarted: int = 0
    # How many turns ended before the job took a step in them, although it reports steps.
    fruitless: int = 0
    cost_usd: float = 0.0
    # The store of its last checkpoint (`NodeSpec.store`). Empty: no checkpoint has been reported.
    checkpoint_at: str = ""
    # For a gang on several stores: the stores of its other ranks, in order.
    checkpoint_beside: tuple[str, ...] = ()
    # Jobs that it still waits for.
    blocked_by: set[str] = msgspec.field(default_factory=set)
    time_s: dict[str, float] = msgspec.field(default_factory=dict)  # `run_s` by worker type
    # `run_s` times the GPUs it held, by worker type.
    gpu_s: dict[str, float] = msgspec.field(default_factory=dict)
    # The exit code of the last attempt that failed.
    last_exit: int | None = None
    # The last lines that the same attempt printed.
    last_lines: str = ""
    # The nodes on which its latest starts failed, without duplicates.
    failed_on: tuple[str, ...] = ()
    # The latest changes of the spec.
    updates: tuple[Update, ...] = ()
    # How many attempts in a row failed after a short run.
    pauses: int = 0
    # The earliest time of the next attempt, after one that failed.
    again_s: float = 0.0

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in TERMINAL

    @property
    def needs_review(self) -> bool:
        """Whether the job has limits or dependencies (`JobSpec.is_limited`), or has paused after a failed attempt."""
        return self.spec.is_limited or self.again_s > 0

    @property
    def may_be_protected(self) -> bool:
        """Whether the job can be protected from preemption, for a time or always."""
        return bool(self.spec.min_run_s or self.fruitless) or not self.spec.preemptible

    @property
    def steps_left(self) -> float:
        """The steps that remained at the last report; inf if the total is unknown."""
        if self.spec.steps is None:
            return math.inf
        return max(self.spec.steps - self.steps_done, 0.0)
