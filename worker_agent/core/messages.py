"""The words an agent's core speaks: orders, what happens to it (events), and what it wants done (actions).

Times are seconds on the agent's own monotonic clock. Nothing here knows how a process is started or how a
message travels; the live agent and the simulated nodes carry the same actions out, each in its own way.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Literal

import msgspec

Outcome = Literal["finished", "yielded", "failed", "node_failed"]
Token = tuple[int, int]  # epoch and attempt: of two tokens for a job, the smaller one is stale


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How patient an agent is.

    late_s + ask_s + grace_s has to stay below the scheduler's lease_margin_s: by then it takes a GPU whose
    lease ran out for free.
    """

    report_interval_s: float = 30.0
    first_step_s: float = 5.0  # a job that takes longer to start has its first step told at once
    late_s: float = 1.0  # a renewal may come so long after the end of the lease
    ask_s: float = 20.0  # from asking a job to checkpoint and stop to the signal
    grace_s: float = 5.0  # from the signal to its leader to killing its group, and to killing it again
    jobs_kept_max: int = 4096  # of which the newest attempt is remembered


class Order(msgspec.Struct, frozen=True, gc=False):
    """Run this part of a job on these GPUs until then. Nothing is left to choose."""

    lease: str
    job: str
    attempt: int
    gpus: tuple[int, ...]  # local indices
    ends_s: float
    epoch: int = 0  # of the scheduler that granted it: with the attempt, the token
    node_rank: int = 0
    nodes: int = 1
    world_size: int = 1
    rendezvous: str = ""
    steps_max: float | None = None
    last: bool = False  # it will not be renewed: it ends at its end, and no late renewal is waited for

    @property
    def token(self) -> Token:
        """What the newest attempt of a job is known by."""
        return self.epoch, self.attempt

    def named(self, **more: object) -> dict[str, object]:
        """What a line of the log is about, which names some of this and has the rest as fields."""
        return {"job": self.job, "lease": self.lease, "attempt": self.attempt, **more}


class Phase(Enum):
    """Where the processes of an order are."""

    WAITING = "waiting"  # for the exit of those that had the GPUs before
    STARTING = "starting"
    RUNNING = "running"
    ASKED = "asked"  # to checkpoint and stop
    SIGNALLED = "signalled"
    KILLED = "killed"


# by names of their own, for what happens with every order: to find a member in its Enum takes five times as long
WAITING, STARTING, RUNNING = Phase.WAITING, Phase.STARTING, Phase.RUNNING
ASKED, SIGNALLED, KILLED = Phase.ASKED, Phase.SIGNALLED, Phase.KILLED


class Run(msgspec.Struct, kw_only=True, gc=False):
    """An order as the agent keeps it until its processes are gone."""

    order: Order
    ends_s: float
    phase: Phase = Phase.WAITING
    wanted: bool = True  # in the set; False: on its way out
    last: bool = False  # as the newest set says it
    due_s: float = math.inf  # of the next escalation
    started_s: float = math.inf
    said_s: float = math.inf  # when its progress was last reported; its start counts
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0
    changed: bool = False  # progress that has not been reported


# ---------------------------------------------------------------------------------------------------- events


class Desired(msgspec.Struct, frozen=True, gc=False):
    """The full set of orders, from now on. What it says of ends holds for its round, whatever Renewed says."""

    epoch: int
    generation: int
    orders: tuple[Order, ...]
    round_number: int = 0
    why_ended: dict[str, str] = {}  # by lease, why it ends: for the log of its job


class Renewed(msgspec.Struct, frozen=True, gc=False):
    """In this round, the set of this generation goes on until then; an order that is ending already does not."""

    epoch: int
    generation: int
    round_number: int
    ends_s: float


class ProcessStarted(msgspec.Struct, frozen=True, gc=False):
    """The processes of an order run."""

    lease: str


class ProcessFound(msgspec.Struct, frozen=True):
    """After the agent was restarted: processes of an order still run, and how far they were."""

    order: Order
    ran_s: float | None = 0.0  # None: it is still being prepared
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0


class ProcessExited(msgspec.Struct, frozen=True, gc=False):
    """All processes of an order are gone, and how."""

    lease: str
    outcome: Outcome
    steps: float
    saved: float
    stepping_s: float
    ran_s: float
    code: int = 0


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """How far the job is: absolute steps, and seconds of stepping under this lease."""

    lease: str
    steps: float
    saved: float
    stepping_s: float


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The scheduler has this report for good."""

    number: int


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """The scheduler can be reached."""


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The scheduler cannot be reached."""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The time that WakeAt asked for has come."""


Event = (
    Desired
    | Renewed
    | ProcessStarted
    | ProcessFound
    | ProcessExited
    | Progressed
    | Taken
    | LinkUp
    | LinkDown
    | Tick
)

# --------------------------------------------------------------------------------------------------- actions


class StartProcess(msgspec.Struct, frozen=True, gc=False):
    """Start the processes of an order; answered with ProcessStarted or ProcessExited."""

    order: Order


class AskToStop(msgspec.Struct, frozen=True, gc=False):
    """Tell the job, through its lease, to checkpoint and stop."""

    lease: str


class SignalLeader(msgspec.Struct, frozen=True, gc=False):
    """It did not stop when asked: signal the leader, and nobody else."""

    lease: str


class KillGroup(msgspec.Struct, frozen=True, gc=False):
    """It did not stop when signalled: end all that belongs to it."""

    lease: str


class Held(msgspec.Struct, frozen=True, gc=False):
    """An order that this agent answers for: processes run for it, or their exit is about to be reported."""

    lease: str
    steps: float
    ran_s: float


class SayHello(msgspec.Struct, frozen=True):
    """Tell the scheduler that this node is there, and what it still holds. The first word on every link."""

    held: tuple[Held, ...] = ()


class Send(msgspec.Struct, frozen=True, gc=False):
    """Report this. `generation` lets the scheduler see which set is known here; if its own is newer, it sends it."""

    number: int
    generation: int
    started: tuple[str, ...] = ()
    progress: tuple[Progressed, ...] = ()
    exits: tuple[ProcessExited, ...] = ()


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send a Tick then. One is armed at most: a new one replaces it."""

    at_s: float


Action = StartProcess | AskToStop | SignalLeader | KillGroup | SayHello | Send | WakeAt
