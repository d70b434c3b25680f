"""A lease: the right of one job to use certain GPUs until a certain time."""

from __future__ import annotations

import signal
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from scheduler.model.jobs import JobState

GpuId = str  # "node:index"


class Bundle(NamedTuple):
    """The jobs that run together on the same GPUs: a column of the problem, by name."""

    # One job, or two packed ones in order of their ids.
    jobs: tuple[str, ...]
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
    # In the scheduler's time. Agents receive the time that is left instead.
    ends_s: float
    # The total number of steps after which the job is done.
    steps_max: float | None = None
    # The address at which the ranks of a gang meet: its first node, filled in when the lease is sent.
    rendezvous: str = ""


class Phase(StrEnum):
    """The phase of a lease in its life cycle."""

    # Granted, but leases that are ending still hold its GPUs or its job.
    WAITING = "waiting"
    # Sent to the node, not confirmed yet.
    SENT = "sent"
    RUNNING = "running"
    # Asked to stop. Its GPUs stay taken until the exit is confirmed or the lease has lapsed.
    STOPPING = "stopping"


# Every lease uses these: a plain name is five times faster than looking the member up in its Enum.
WAITING, SENT, RUNNING, STOPPING = Phase.WAITING, Phase.SENT, Phase.RUNNING, Phase.STOPPING
HOLDING = frozenset({SENT, RUNNING, STOPPING})


class LeadExit(msgspec.Struct, frozen=True, array_like=True):
    """The exit of a gang's ranks on its first node. Rank 0, which saves the checkpoints, is one of these ranks.

    The fields are those of `scheduler.core.messages.Exit`.
    """

    outcome: Literal["finished", "yielded", "failed", "node_failed"]
    steps: float
    saved: float
    stepping_s: float
    ran_s: float


class Holding(msgspec.Struct, kw_only=True):
    """A lease in the scheduler's state. It is removed once it is closed."""

    lease: Lease
    phase: Phase
    granted_s: float
    # When the lease could be sent, because its GPUs and its job were free, and the job's total progress at that time.
    # None: it waits, or was sent by a release that did not record it.
    sent_s: float | None = None
    sent_steps: float = 0.0
    # When the lease ends. None: with the round, like every renewed lease.
    ends_s: float | None = None
    # The current bundle: it changes when a packed partner comes or goes.
    bundle: Bundle
    # Leases that must be closed before this lease can be sent.
    waits_for: set[str] = msgspec.field(default_factory=set)
    started_s: float | None = None
    # When `steps` was measured.
    reported_s: float = 0.0
    # The job's total progress at `reported_s`.
    steps: float = 0.0
    # The time spent on steps under this lease, as last reported. Snapshots have it under its former name.
    stepping_s: float = msgspec.field(default=0.0, name="ran_s")
    # How much longer than usual the job may take to save and end after it was asked. It never falls within a lease.
    extra_save_s: float = 0.0
    # Of a stopping lease: the time after which it has certainly lapsed.
    stop_by_s: float | None = None
    why: str = ""  # of a stopping lease
    # The job's former state and reason, if the grant of this lease moved it to running.
    before: tuple[JobState, str] | None = None
    # Of a stopping lease: no user's command ended it, so the job counts as preempted.
    unasked: bool = True
    # Nodes of a gang on which all ranks have exited.
    exited: set[str] = msgspec.field(default_factory=set)
    # If ranks of a gang died: the outcome of the one that died first, or that ran out of memory.
    died: Literal["failed", "node_failed", ""] = ""
    # The node on which this rank died.
    died_on: str = ""
    code: int = 0  # this rank's exit code
    # This rank's last lines of output.
    last_lines: str = ""
    # The exit on the first node of a gang, while other nodes still run ranks.
    lead: LeadExit | None = None
    # The time up to which its bundle has been credited with received time.
    credit_s: float = 0.0
    # How many of the seconds in which it had processes are already included in `cost_usd`.
    charged_s: float = 0.0
    cost_usd: float = 0.0
    # By node: since when its GPUs have been idle. The lease is idle if it has all its nodes.
    idle_since: dict[str, float] = msgspec.field(default_factory=dict)
    # How long the lease was idle in earlier times.
    was_idle_s: float = 0.0
    # Whether the next report cannot measure a rate, because the partner changed or the node was silent meanwhile.
    mixed: bool = False
    # Up to when the budgets of its tenants and user were charged for its GPUs. Its time without budgets is not charged.
    paid_s: float = 0.0

    @property
    def idle_began_s(self) -> float | None:
        """Since when all its GPUs have been idle; None if they are not."""
        since_s = self.idle_since
        # Few leases are idle, and `nodes_of` takes a while.
        return max(since_s.values()) if since_s and len(since_s) == len(nodes_of(self.lease.gpus)) else None


def node_of(gpu: GpuId) -> str:
    """Return the node that a GPU is in."""
    return gpu.rpartition(":")[0]


# Called about ten times for each lease, often for the same GPUs.
@lru_cache(maxsize=65536)
def nodes_of(gpus: tuple[GpuId, ...]) -> tuple[str, ...]:
    """Return the nodes of a gang without duplicates, in the order of its ranks."""
    return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in gpus))


def exit_words(code: int) -> str:
    """Describe an exit code. Negative codes are signals, and so are codes above 128 from a shell."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:  # not a named signal
        return f"exited with code {code}"
    often = " (often: out of memory)" if number == signal.SIGKILL else ""
    return f"was killed by {name}{often}" if code < 0 else f"exited with code {code}: {name}{often}"
