"""What the core is told. Everything that happens reaches it as one of these, and in no other way.

people   SubmitJobs JobCommand NodeCommand SetPolicy SetPrices Configure GiveRates
history  Forget
nodes    NodeHello NodeReport NodeSilent
solver   Solved
time     Woke
"""

from __future__ import annotations

from typing import Literal

import msgspec

from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.settings import Settings


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages."""


class SubmitJobs(Message, frozen=True, kw_only=True):
    """Take these jobs. Answered with their ids. The same `key` again: the same jobs."""

    call: str = ""  # whom the reply goes to
    specs: tuple[JobSpec, ...]
    key: str = ""
    user: str = ""
    # How jobs and arrays ended that `after` names and the core has forgotten.
    past: dict[str, JobState] = {}


class JobCommand(Message, frozen=True, kw_only=True):
    """A person wants something done to a job."""

    call: str = ""
    job: str
    action: Literal["cancel", "hold", "release", "requeue"]
    user: str = ""


class NodeCommand(Message, frozen=True, kw_only=True):
    """An operator wants something done to a node."""

    call: str = ""
    node: str
    action: Literal["drain", "resume", "remove"]
    user: str = ""
    by_agent: bool = False  # the node's own agent wants it, and no operator


class SetPolicy(Message, frozen=True, kw_only=True):
    """Allocate by this policy from the next allocation on."""

    call: str = ""
    policy: str
    user: str = ""


class Configure(Message, frozen=True, kw_only=True):
    """These settings hold from now on."""

    call: str = ""
    settings: Settings
    user: str = ""


class GiveRates(Message, frozen=True, kw_only=True):
    """Rows of the throughput table, as in the fact RatesGiven."""

    call: str = ""
    solo: list[tuple[str, int, str, float]] = []
    unconsolidated: list[tuple[str, int, str, float]] = []
    pairs: list[tuple[str, str, str, int, float, float]] = []
    user: str = ""


class SetPrices(Message, frozen=True, kw_only=True):
    """Prices changed."""

    call: str = ""
    price_per_gpu_hour: dict[str, float]
    user: str = ""


class Forget(Message, frozen=True, kw_only=True):
    """Ended jobs and used keys that have been kept long enough: the history has these jobs. At most a few thousand."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that a node still has processes for, as it says when it (re)joins."""

    lease: str
    steps: float
    ran_s: float


class NodeHello(Message, frozen=True, kw_only=True):
    """A node joins, or comes back."""

    spec: NodeSpec
    held: tuple[HeldLease, ...] = ()
    trouble: str = ""  # why its agent cannot run jobs now; empty: it can


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far the job under a lease is: absolute steps, seconds of stepping in this lease."""

    lease: str
    steps: float
    saved: float  # steps in the last durable checkpoint
    stepping_s: float


class Exit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The processes of a lease are gone and the GPUs are free."""

    lease: str
    outcome: Literal["finished", "yielded", "failed", "node_failed"]
    steps: float
    saved: float
    stepping_s: float  # of that, doing steps
    ran_s: float  # with processes: start-up, steps, checkpoint
    code: int = 0
    detail: str = ""  # the last lines of what a failed attempt printed


class NodeReport(Message, frozen=True, kw_only=True, gc=False):
    """What changed on a node, or what has come to pass at the reporting interval."""

    node: str
    generation: int  # the newest set of leases it has seen
    started: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    exits: tuple[Exit, ...] = ()
    broken_gpus: tuple[int, ...] = ()
    # All GPUs on which ended jobs may have left processes; None: not reported this time.
    withheld_gpus: tuple[int, ...] | None = None
    # Why its agent cannot run jobs now; empty: it can; None: not reported this time.
    trouble: str | None = None


class NodeSilent(Message, frozen=True, kw_only=True):
    """The link to a node is gone."""

    node: str


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """A solved allocation in plain lists: rows of `jobs` and `worker_types`, one entry per column."""

    jobs: tuple[str, ...]
    worker_types: tuple[str, ...]
    first: list[int]
    second: list[int]
    worker_type: list[int]
    gpus: list[int]
    label: tuple[str, ...] = ()  # empty: all ""
    share: list[float]
    no_backfill: list[int] = []  # columns that may not take idle GPUs
    price: list[float | None] = []
    isolated_rate: list[float] = []


class Solved(Message, frozen=True, kw_only=True):
    """The answer to a Solve. `failed` says why `shares` are first-come-first-served instead of the policy's."""

    number: int
    policy: str
    shares: Shares
    failed: str = ""
    value: float | None = None
    optimal: bool = True
    notes: tuple[str, ...] = ()


class Woke(Message, frozen=True, kw_only=True):
    """The time that WakeAt asked for has come."""

    what: str
