"""Messages to the core. Everything that happens reaches it as one of these.

users    SubmitJobs JobCommand NodeCommand SetPolicy SetPrices Configure GiveRates
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
    """Submit these jobs. The reply holds their ids; repeating a `key` gives the same jobs."""

    # The call that the reply answers.
    call: str = ""
    specs: tuple[JobSpec, ...]
    key: str = ""
    user: str = ""
    # The final states of the forgotten jobs and arrays that `after` names.
    past: dict[str, JobState] = {}


class JobCommand(Message, frozen=True, kw_only=True):
    """A user's command about a job or an array."""

    call: str = ""
    job: str
    action: Literal["cancel", "hold", "release", "requeue"]
    user: str = ""


class NodeCommand(Message, frozen=True, kw_only=True):
    """A command about a node, from an operator or from its own agent."""

    call: str = ""
    node: str
    action: Literal["drain", "resume", "remove"]
    user: str = ""
    # Sent by the node's own agent rather than by an operator.
    by_agent: bool = False


class SetPolicy(Message, frozen=True, kw_only=True):
    """Use this policy from the next allocation on."""

    call: str = ""
    policy: str
    user: str = ""


class Configure(Message, frozen=True, kw_only=True):
    """Put these settings into force."""

    call: str = ""
    settings: Settings
    user: str = ""


class GiveRates(Message, frozen=True, kw_only=True):
    """Add rows of the throughput table, as in the fact RatesGiven."""

    call: str = ""
    solo: list[tuple[str, int, str, float]] = []
    unconsolidated: list[tuple[str, int, str, float]] = []
    pairs: list[tuple[str, str, str, int, float, float]] = []
    user: str = ""


class SetPrices(Message, frozen=True, kw_only=True):
    """Set the prices of these worker types."""

    call: str = ""
    price_per_gpu_hour: dict[str, float]
    user: str = ""


class Forget(Message, frozen=True, kw_only=True):
    """Forget ended jobs, which the history has archived, and used keys: at most a few thousand at a time."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease for which a node still has processes, as reported when the node joins."""

    lease: str
    steps: float
    ran_s: float


class NodeHello(Message, frozen=True, kw_only=True):
    """A node joins or rejoins."""

    spec: NodeSpec
    held: tuple[HeldLease, ...] = ()
    # Why its agent cannot run jobs now. Empty: it can.
    trouble: str = ""


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a job: its total steps, and the seconds of stepping under this lease."""

    lease: str
    steps: float
    # Steps in the last durable checkpoint.
    saved: float
    stepping_s: float


class Exit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a lease: its processes are gone and its GPUs are free."""

    lease: str
    outcome: Literal["finished", "yielded", "failed", "node_failed"]
    steps: float
    saved: float
    # Time spent on steps.
    stepping_s: float
    # Time with processes: start-up, steps and checkpoint.
    ran_s: float
    code: int = 0
    # The last lines that a failed attempt printed.
    detail: str = ""


class NodeReport(Message, frozen=True, kw_only=True, gc=False):
    """A node's report: at the reporting interval, or when something changed."""

    node: str
    # The newest set of leases that the node has received.
    generation: int
    started: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    exits: tuple[Exit, ...] = ()
    broken_gpus: tuple[int, ...] = ()
    # All GPUs on which jobs that ended may have left processes. None: not reported this time.
    withheld_gpus: tuple[int, ...] | None = None
    # Why its agent cannot run jobs now. Empty: it can. None: not reported this time.
    trouble: str | None = None


class NodeSilent(Message, frozen=True, kw_only=True):
    """The link to a node is lost."""

    node: str


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """A solved allocation in plain lists, one entry per column. Jobs and worker types are given by their index."""

    jobs: tuple[str, ...]
    worker_types: tuple[str, ...]
    first: list[int]
    second: list[int]
    worker_type: list[int]
    gpus: list[int]
    label: tuple[str, ...] = ()  # empty: all ""
    share: list[float]
    # Columns that may not fill idle GPUs.
    no_backfill: list[int] = []
    price: list[float | None] = []
    isolated_rate: list[float] = []


class Solved(Message, frozen=True, kw_only=True):
    """The answer to a Solve. `failed`: why the shares are first come, first served instead of the policy's."""

    number: int
    policy: str
    shares: Shares
    failed: str = ""
    value: float | None = None
    optimal: bool = True
    notes: tuple[str, ...] = ()


class Woke(Message, frozen=True, kw_only=True):
    """The timer that WakeAt set has expired."""

    what: str
