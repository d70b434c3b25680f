"""Facts: the events that change the state. The journal is a list of facts, and the state is their sum.

WARNING: journals outlive releases. A fact type or field that was once released is never renamed, retyped or given
another meaning; new fields have defaults. docs/journal-format.md explains how to add one.
"""

from __future__ import annotations

import msgspec

from scheduler.core.accounts.cached import CachedData
from scheduler.core.messages import Exit, Progress, Shares
from scheduler.model.changes import JobChanges
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Bundle, Lease
from scheduler.model.settings import Settings


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all facts. A fact that a user may have caused names the user in `by`."""


class Configured(Fact, frozen=True, kw_only=True):
    """Settings that are in force from now on."""

    settings: Settings
    by: str = ""


class EpochStarted(Fact, frozen=True, kw_only=True):
    """A scheduler process took over. Leases and reports carry the epoch."""

    epoch: int


class RecordsLost(Fact, frozen=True, kw_only=True):
    """Records of this journal were lost, so nodes may run unknown leases.

    Epochs and numbers of jobs and leases that the lost records may have used are skipped.
    """

    # How many records were lost.
    records: int
    # The last epoch that may have been used.
    epoch: int
    # The first numbers that cannot have been used.
    next_job: int
    next_lease: int


class RatesGiven(Fact, frozen=True, kw_only=True):
    """Rows of the throughput table: job type, GPUs, worker type, steps per second."""

    solo: list[tuple[str, int, str, float]] = []
    # The rates of gangs that are spread over more nodes than they need.
    unconsolidated: list[tuple[str, int, str, float]] = []
    # Worker type, both job types, GPUs, both rates.
    pairs: list[tuple[str, str, str, int, float, float]] = []
    by: str = ""


class PricesSet(Fact, frozen=True, kw_only=True):
    """Prices that are in force from now on."""

    price_per_gpu_hour: dict[str, float]
    by: str = ""


class JobSubmitted(Fact, frozen=True, kw_only=True):
    """A job was accepted."""

    job: str
    spec: JobSpec
    blocked_by: tuple[str, ...] = ()
    key: str = ""
    # The digest of the submission, by which the core notices that `key` is used again for a different submission.
    digest: str = ""


class JobsForgotten(Fact, frozen=True, kw_only=True):
    """Jobs that ended long ago, and keys of submissions, have left the state. Their ids are not used again."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    # The job types whose measured rates were dropped with these jobs.
    job_types: tuple[str, ...] = ()


class JobMoved(Fact, frozen=True, kw_only=True):
    """A job changed its state, by a row of the table in `scheduler.model.jobs`."""

    job: str
    move: Move
    why: str = ""
    by: str = ""


class JobUpdated(Fact, frozen=True, kw_only=True):
    """A user changed fields of a job that had not ended. The values differ from those before."""

    job: str
    changes: JobChanges
    by: str = ""


class PlanStruckOut(Fact, frozen=True, kw_only=True):
    """An attempt of a job ran out of memory by this plan: no job of its user and type uses the plan again.

    The failure of that attempt does not count as one of the job.
    """

    job: str
    worker_type: str
    gpus: int
    label: str


class NodeJoined(Fact, frozen=True, kw_only=True):
    """A node joined, for the first time or again."""

    spec: NodeSpec


class NodeMoved(Fact, frozen=True, kw_only=True):
    """A node became usable or unusable."""

    node: str
    state: NodeState
    why: str = ""
    # The node's own agent drained the node before the agent stopped. The next agent there resumes the node.
    left: bool = False
    # An operator resumed the node after faults, so its failed starts and faulty GPUs are forgotten.
    mended: bool = False
    # When a faulty node is tried again. None: once its agent reports that it can run jobs.
    back_s: float | None = None


class NodeRemoved(Fact, frozen=True, kw_only=True):
    """A node was removed for good."""

    node: str
    # The operator who removed it. Empty in journals of releases that did not record it.
    by: str = ""


class GpusBroken(Fact, frozen=True, kw_only=True):
    """GPUs reported a fatal error and are no longer used."""

    node: str
    gpus: tuple[int, ...]


class GpusWithheld(Fact, frozen=True, kw_only=True):
    """Ended jobs may have left processes on these GPUs of the node, and on no others; they are not used."""

    node: str
    gpus: tuple[int, ...]


class BudgetReached(Fact, frozen=True, kw_only=True):
    """A tenant, or one of its users, has spent most of a budget, or all but what is too little for its jobs."""

    tenant: str
    # Empty: the tenant as a whole.
    user: str = ""
    # "gpu_hours" or "cost".
    resource: str
    # "day", "week" or "month".
    period: str
    limit: float
    spent: float
    # When the next period begins.
    renews_s: float
    # How much of it is spent, at least; 100: no job gets GPUs by it until it is renewed or raised.
    percent: int


class AllocationAsked(Fact, frozen=True, kw_only=True):
    """A problem was sent to the solver."""

    number: int
    # The jobs that it leaves out, because they are beyond their budgets.
    beyond: tuple[str, ...] = ()


class AllocationAdopted(Fact, frozen=True, kw_only=True):
    """New shares are in force. The fields are those of Solved."""

    number: int
    policy: str
    shares: Shares
    failed: str = ""
    value: float | None = None
    optimal: bool = True
    notes: tuple[str, ...] = ()


class AllocationFailed(Fact, frozen=True, kw_only=True):
    """The policy gave no usable answer. The last allocation stays in force."""

    number: int
    why: str


class RoundPlanned(Fact, frozen=True, kw_only=True):
    """A round was planned. Leases that are neither named here nor stopping are renewed to the end of this round."""

    number: int
    starts_s: float
    ends_s: float
    # Leases that are not renewed.
    ended: tuple[str, ...] = ()
    granted: tuple[Lease, ...] = ()
    # Leases that continue with another partner, or without one.
    rebundled: tuple[tuple[str, Bundle], ...] = ()
    # By worker type: the gang for which GPUs are held back.
    reserved: dict[str, Bundle] = {}
    # Columns that were due, but did not fit.
    skipped: tuple[Bundle, ...] = ()
    # By lease that is not renewed because a budget does not admit it: which budget, for users.
    spent: dict[str, str] = {}


class GpusFilled(Fact, frozen=True, kw_only=True):
    """GPUs that became idle in the middle of a round were given out for the rest of the round."""

    granted: tuple[Lease, ...]
    rebundled: tuple[tuple[str, Bundle], ...] = ()


class LeaseRecalled(Fact, frozen=True, kw_only=True):
    """A lease must end before its round ends. `untold`: the lease was never sent to a node."""

    lease: str
    why: str
    untold: bool = False


class LeasesStarted(Fact, frozen=True, kw_only=True):
    """Nodes confirmed that processes run."""

    leases: tuple[str, ...]


class ProgressMade(Fact, frozen=True, kw_only=True):
    """The progress of running jobs."""

    progress: tuple[Progress, ...]


class CheckpointSaved(Fact, frozen=True, kw_only=True):
    """A job saved in another store (`NodeSpec.store`) than before, and will continue from that checkpoint."""

    job: str
    # The store.
    place: str


class RanksExited(Fact, frozen=True, kw_only=True):
    """All ranks of a gang on one node have exited. The lease is closed once the ranks on all its nodes have exited."""

    node: str
    exit: Exit


class LeasesResumed(Fact, frozen=True, kw_only=True):
    """A silent node came back in time, and these leases on it continue."""

    leases: tuple[str, ...]


class GpusIdled(Fact, frozen=True, kw_only=True):
    """The GPUs of a lease on a node have been idle for long, and its job makes no steps; or no longer so."""

    node: str
    lease: str
    # None: they are in use again.
    since_s: float | None = None


class JobMeasured(Fact, frozen=True, kw_only=True):
    """A job measured new values about itself on these GPUs. Older values under other keys remain."""

    job: str
    worker_type: str
    gpus: int
    # By the keys of `measured` in docs/job-directory.md, and `start_s`.
    values: dict[str, float]
    # Which node of a gang measured them. Empty: the job runs on one node, or its first node spoke for all.
    node: str = ""


class DataCached(Fact, frozen=True, kw_only=True):
    """The cache of a node holds this training data, and no other."""

    node: str
    data: tuple[CachedData, ...]


class DataNamed(Fact, frozen=True, kw_only=True):
    """A job named the training data that it reads, in place of what it named before."""

    job: str
    # The size of each data set in bytes, by its key in docs/job-directory.md; 0: unknown.
    data: dict[str, float]
    # Which node of a gang named it, in place of what this node named before. Empty: the job runs on one node.
    node: str = ""


class LeaseClosed(Fact, frozen=True, kw_only=True):
    """The processes of a lease are gone and its GPUs are free."""

    exit: Exit
    # No exit was reported, but the lease's time is over.
    lapsed: bool = False


AnyFact = (
    Configured
    | EpochStarted
    | RecordsLost
    | RatesGiven
    | PricesSet
    | JobSubmitted
    | JobsForgotten
    | JobMoved
    | JobUpdated
    | PlanStruckOut
    | NodeJoined
    | NodeMoved
    | NodeRemoved
    | GpusBroken
    | GpusWithheld
    | BudgetReached
    | AllocationAsked
    | AllocationAdopted
    | AllocationFailed
    | RoundPlanned
    | GpusFilled
    | LeaseRecalled
    | LeasesStarted
    | ProgressMade
    | CheckpointSaved
    | RanksExited
    | LeasesResumed
    | GpusIdled
    | JobMeasured
    | DataCached
    | DataNamed
    | LeaseClosed
)
