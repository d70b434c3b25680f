"""Messages to the core. Everything that happens reaches the core as one of these.

users    SubmitJobs JobCommand UpdateJob NodeCommand SetPolicy SetTenants SetPrices Configure GiveRates
history  Forget
nodes    NodeHello NodeReport CacheChanged NodeSilent
solver   Solved
time     Woke
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from scheduler.core.accounts.cached import CachedData
from scheduler.model.changes import JobChanges
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.settings import Settings, TenantSpec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages. `call`, in users' messages: the call that the core answers; empty: no answer is needed."""


class SubmitJobs(Message, frozen=True, kw_only=True):
    """Submit these jobs. The reply holds their ids. A repeated submission with the same `key` gets the same ids."""

    call: str = ""
    specs: tuple[JobSpec, ...]
    # The idempotency key. Empty: none.
    key: str = ""
    user: str = ""
    # The final states of jobs and arrays that `JobSpec.after` names, but that the core has forgotten.
    past: dict[str, JobState] = {}


class JobCommand(Message, frozen=True, kw_only=True):
    """A user's command about a job or an array."""

    call: str = ""
    job: str
    action: Literal["cancel", "hold", "release", "requeue"]
    user: str = ""


class UpdateJob(Message, frozen=True, kw_only=True):
    """Change fields of a job, or of all unfinished jobs of an array."""

    call: str = ""
    job: str
    changes: JobChanges
    user: str = ""


class NodeCommand(Message, frozen=True, kw_only=True):
    """A command about a node, from an operator or from its own agent."""

    call: str = ""
    node: str
    action: Literal["drain", "resume", "remove"]
    user: str = ""
    # Sent by the node's own agent rather than by an operator.
    by_agent: bool = False
    # Why, in the operator's words.
    reason: str = ""


class SetPolicy(Message, frozen=True, kw_only=True):
    """Use this policy from the next allocation on."""

    call: str = ""
    policy: str
    user: str = ""


class SetTenants(Message, frozen=True, kw_only=True):
    """Declare these tenants, each in place of one with its name, and forget the declarations of others."""

    call: str = ""
    tenants: tuple[TenantSpec, ...] = ()
    # The names of tenants.
    removed: tuple[str, ...] = ()
    # By tenant: the version of the declaration that was read. Another declaration is not replaced.
    versions: Mapping[str, str] = {}
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
    """Forget ended jobs, which the history has archived, and idempotency keys; at most a few thousand at a time."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease for which a node still has processes, as reported when the node joins."""

    lease: str
    # The total steps of the job.
    steps: float
    # How long processes have run under this lease.
    ran_s: float


class NodeHello(Message, frozen=True, kw_only=True):
    """A node joins or rejoins."""

    spec: NodeSpec
    held: tuple[HeldLease, ...] = ()
    # Why the node's agent cannot run jobs now. Empty: it can.
    trouble: str = ""
    # Whether the node has a cache of training data.
    has_cache: bool = False


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a job."""

    lease: str
    # The total steps of the job, over all its leases.
    steps: float
    # How many of these steps are in the last durable checkpoint.
    saved: float
    # The time spent on steps under this lease.
    stepping_s: float


class Exit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a lease: its processes are gone and its GPUs are free."""

    lease: str
    outcome: Literal["finished", "yielded", "failed", "node_failed"]
    # The next three fields are as in Progress.
    steps: float
    saved: float
    stepping_s: float
    # How long processes ran under this lease: start-up, steps and checkpoint.
    ran_s: float
    # The exit code.
    code: int = 0
    # The last lines that a failed attempt printed, or a part of a gang that ran out of memory.
    detail: str = ""


class NodeReport(Message, frozen=True, kw_only=True, gc=False):
    """A node's report: at the reporting interval, or when something changed."""

    node: str
    # The generation of the newest set of leases that the node has received.
    generation: int
    started: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    exits: tuple[Exit, ...] = ()
    # By lease: what its job has measured about itself.
    measured: dict[str, dict[str, float]] = {}
    broken_gpus: tuple[int, ...] = ()
    # All GPUs on which jobs that ended may have left processes. None: not reported this time.
    withheld_gpus: tuple[int, ...] | None = None
    # Why the node's agent cannot run jobs now. Empty: it can. None: not reported this time.
    trouble: str | None = None
    # By lease: for how many seconds its GPUs on this node have been idle. None: not reported this time.
    idle_s: dict[str, float] | None = None


class CacheChanged(Message, frozen=True, kw_only=True):
    """The cache of a node holds this training data now, and jobs that run there have named these data sets."""

    node: str
    cached: tuple[CachedData, ...] = ()
    # By lease: the size of each data set in bytes, by its key; 0: unknown.
    named: dict[str, dict[str, float]] = {}


class NodeSilent(Message, frozen=True, kw_only=True):
    """The link to a node is lost."""

    node: str


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """A solved allocation in plain lists."""

    jobs: tuple[str, ...]
    worker_types: tuple[str, ...]
    # One entry per column: the indices of its jobs in `jobs`; `second` is -1 if the column has one job.
    first: list[int]
    second: list[int]
    # One entry per column: an index in `worker_types`.
    worker_type: list[int]
    gpus: list[int]
    label: tuple[str, ...] = ()  # empty: all ""
    share: list[float]
    # The indices of the columns that may not fill idle GPUs.
    no_backfill: list[int] = []
    # By worker type: the value of one more GPU for the policy's objective; None: unknown.
    price: list[float | None] = []
    # By job: the rate that it would have with an equal part of the cluster.
    isolated_rate: list[float] = []


class Solved(Message, frozen=True, kw_only=True):
    """The answer to the Solve with this number."""

    number: int
    policy: str
    shares: Shares
    # Why the shares are first come, first served instead of the policy's. Empty: they are the policy's.
    failed: str = ""
    # The value of the policy's objective.
    value: float | None = None
    # Whether the solver reached the optimum.
    optimal: bool = True
    notes: tuple[str, ...] = ()


class Woke(Message, frozen=True, kw_only=True):
    """A timer that WakeAt set has expired."""

    # The name of the timer.
    what: str
