"""What has happened. The journal is a list of these, and the state is what they add up to.

WARNING: journals outlive releases. A fact type or a field that was once released is never renamed, retyped or
given another meaning; new fields have defaults. docs/journal-format.md says how to add one.
"""

from __future__ import annotations

import msgspec

from scheduler.core.messages import Exit, Progress, Shares
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Bundle, Lease
from scheduler.model.settings import Settings


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all facts."""


class Configured(Fact, frozen=True, kw_only=True):
    """These settings hold from now on."""

    settings: Settings
    by: str = ""


class EpochStarted(Fact, frozen=True, kw_only=True):
    """A scheduler process took over. Leases and reports carry the epoch."""

    epoch: int


class RecordsLost(Fact, frozen=True, kw_only=True):
    """Records of this journal were lost: what they may have used is not used again, and what runs is not known."""

    records: int
    epoch: int  # the last that may have been used
    next_job: int
    next_lease: int


class RatesGiven(Fact, frozen=True, kw_only=True):
    """Rows of the throughput table: job type, GPUs, worker type, steps per second."""

    solo: list[tuple[str, int, str, float]] = []
    unconsolidated: list[tuple[str, int, str, float]] = []
    pairs: list[tuple[str, str, str, int, float, float]] = []  # worker type, job types, GPUs, rates
    by: str = ""


class PricesSet(Fact, frozen=True, kw_only=True):
    """Prices from now on."""

    price_per_gpu_hour: dict[str, float]
    by: str = ""


class JobSubmitted(Fact, frozen=True, kw_only=True):
    """A job was taken."""

    job: str
    spec: JobSpec
    blocked_by: tuple[str, ...] = ()
    key: str = ""
    digest: str = ""  # of the request, so that the same key with another request is noticed


class JobsForgotten(Fact, frozen=True, kw_only=True):
    """Jobs that ended long ago, and keys of submissions, are no part of the state any more. Ids are not used again."""

    jobs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()  # whose measured rates went along


class JobMoved(Fact, frozen=True, kw_only=True):
    """A job changed its state by the table of `scheduler.model.jobs`."""

    job: str
    move: Move
    why: str = ""
    by: str = ""


class NodeJoined(Fact, frozen=True, kw_only=True):
    """A node is there, for the first time or again."""

    spec: NodeSpec


class NodeMoved(Fact, frozen=True, kw_only=True):
    """A node became usable or unusable."""

    node: str
    state: NodeState
    why: str = ""
    left: bool = False  # by its own agent, which stops: the next one makes up for it
    mended: bool = False  # a person has looked at it: what was held against it and its GPUs is forgotten
    # When a faulty node is tried again; None: when its agent reports that it can run jobs.
    back_s: float | None = None


class NodeRemoved(Fact, frozen=True, kw_only=True):
    """A node was taken out for good."""

    node: str


class GpusBroken(Fact, frozen=True, kw_only=True):
    """GPUs that reported a fatal error are not used any more."""

    node: str
    gpus: tuple[int, ...]


class GpusWithheld(Fact, frozen=True, kw_only=True):
    """On these GPUs of the node, and no others, ended jobs may have left processes: they are not used meanwhile."""

    node: str
    gpus: tuple[int, ...]


class AllocationAsked(Fact, frozen=True, kw_only=True):
    """A problem went to the solver."""

    number: int


class AllocationAdopted(Fact, frozen=True, kw_only=True):
    """These shares are in force. `failed`: they are first come, first served, and why."""

    number: int
    policy: str
    shares: Shares
    failed: str = ""
    value: float | None = None
    optimal: bool = True
    notes: tuple[str, ...] = ()


class AllocationFailed(Fact, frozen=True, kw_only=True):
    """The solver gave no answer by the policy; the last allocation stays in force."""

    number: int
    why: str


class RoundPlanned(Fact, frozen=True, kw_only=True):
    """A round: leases that are not named here and not stopping are renewed to its end."""

    number: int
    starts_s: float
    ends_s: float
    ended: tuple[str, ...] = ()  # leases that are not renewed
    granted: tuple[Lease, ...] = ()
    rebundled: tuple[tuple[str, Bundle], ...] = ()  # leases that go on with another partner, or without
    reserved: dict[str, Bundle] = {}
    skipped: tuple[Bundle, ...] = ()


class GpusFilled(Fact, frozen=True, kw_only=True):
    """GPUs that became idle in the middle of a round were given out for the rest of it."""

    granted: tuple[Lease, ...]
    rebundled: tuple[tuple[str, Bundle], ...] = ()


class LeaseRecalled(Fact, frozen=True, kw_only=True):
    """A lease must end now, before its round does. `untold`: it was granted just before, and no node knows of it."""

    lease: str
    why: str
    untold: bool = False


class LeasesStarted(Fact, frozen=True, kw_only=True):
    """Nodes confirmed that processes run."""

    leases: tuple[str, ...]


class ProgressMade(Fact, frozen=True, kw_only=True):
    """How far running jobs are."""

    progress: tuple[Progress, ...]


class CheckpointSaved(Fact, frozen=True, kw_only=True):
    """A job saved at a place (`NodeSpec.place`) that is not where its last checkpoint was: it goes on from there."""

    job: str
    place: str


class RanksExited(Fact, frozen=True, kw_only=True):
    """One node of a gang is done; the lease is closed when all are."""

    node: str
    exit: Exit


class LeasesResumed(Fact, frozen=True, kw_only=True):
    """A silent node is back with these, in time: they go on."""

    leases: tuple[str, ...]


class LeaseClosed(Fact, frozen=True, kw_only=True):
    """The processes are gone and the GPUs are free. `lapsed`: nobody said so, but its time is over."""

    exit: Exit
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
    | NodeJoined
    | NodeMoved
    | NodeRemoved
    | GpusBroken
    | GpusWithheld
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
    | LeaseClosed
)
