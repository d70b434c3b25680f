"""A lease: one job may use these GPUs until then. Nothing is left to choose when it is carried out."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from scheduler.model.jobs import JobState

GpuId = str  # "node:index"


class Bundle(NamedTuple):
    """What runs together on the same GPUs: a column of the problem, by name."""

    jobs: tuple[str, ...]  # one, or two that are packed, in order of id
    worker_type: str
    gpus: int
    label: str = ""


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job's right to its GPUs. Packed jobs hold two leases on the same GPUs."""

    id: str
    job: str
    bundle: Bundle
    attempt: int
    epoch: int
    gpus: tuple[GpuId, ...]
    round_number: int
    ends_s: float  # scheduler time; what goes to a node is the time that is left
    steps_max: float | None = None  # the job's total, so that it knows when it is done
    rendezvous: str = ""  # where the ranks of a gang meet; the first node, filled in by the link


class Phase(StrEnum):
    """Where a lease is in its life."""

    WAITING = "waiting"  # planned; its GPUs or its job are still held by leases that are ending
    SENT = "sent"  # given to the node, not confirmed
    RUNNING = "running"
    STOPPING = (
        "stopping"  # told to stop; the GPUs stay taken until the exit is confirmed or the lease has lapsed
    )


# by names of their own, for what is asked of every lease: to find a member in its Enum takes five times as long
WAITING, SENT, RUNNING, STOPPING = Phase.WAITING, Phase.SENT, Phase.RUNNING, Phase.STOPPING
HOLDING = frozenset({SENT, RUNNING, STOPPING})


class LeadExit(msgspec.Struct, frozen=True, array_like=True):
    """How the ranks on the first node of a gang ended: rank 0 is among them, which knows what was saved."""

    outcome: Literal["finished", "yielded", "failed", "node_failed"]
    steps: float
    saved: float
    stepping_s: float
    ran_s: float


class Holding(msgspec.Struct, kw_only=True):
    """A lease as the scheduler keeps it. Gone from the state once it is closed."""

    lease: Lease
    phase: Phase
    granted_s: float
    ends_s: float | None = None  # None: with the round, as renewed leases do
    bundle: Bundle  # of now: it changes when a packed partner comes or goes
    waits_for: set[str] = msgspec.field(default_factory=set)  # leases that must close first
    started_s: float | None = None
    reported_s: float = 0.0  # when `steps` was true
    steps: float = 0.0  # absolute step of the job at `reported_s`
    ran_s: float = 0.0
    stop_by_s: float | None = None  # when stopping: the lease has lapsed for certain after this
    why: str = ""  # when stopping: the reason
    before: tuple[JobState, str] | None = None  # what its job was, and why, if the grant is what made it run
    unasked: bool = True  # when stopping: no person asked for it, so that its job is preempted
    exited: set[str] = msgspec.field(default_factory=set)  # nodes of a gang that are done already
    died: Literal["failed", "node_failed", ""] = ""  # how the first rank of a gang died, if one did
    died_on: str = ""  # the node of that rank
    code: int = 0  # its exit code
    last_lines: str = ""  # of what it printed
    lead: LeadExit | None = None  # of a gang whose first node is done before others are
    credit_s: float = 0.0  # its bundle is credited with received time until then
    charged_s: float = 0.0  # of its time with processes, what `cost_usd` is for
    cost_usd: float = 0.0
    mixed: bool = (
        False  # its company changed since the last report, or nobody heard of it: no measure of a rate
    )


def node_of(gpu: GpuId) -> str:
    """The node a GPU is in."""
    return gpu.rpartition(":")[0]


@lru_cache(maxsize=65536)  # asked some ten times in the life of a lease, and GPUs come again
def nodes_of(gpus: tuple[GpuId, ...]) -> tuple[str, ...]:
    """The nodes of a gang, each once, in the order of its ranks."""
    return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in gpus))
