"""The values that an agent's core takes and returns: orders, events, actions, reports.

Times are seconds on the agent's own monotonic clock. Nothing here depends on how a process is started or a message is
sent: the live agent and the simulated nodes carry out the same actions, each in its own way.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Literal

import msgspec

Outcome = Literal["finished", "yielded", "failed", "node_failed"]
# Epoch and attempt: of two tokens for the same job, the smaller one is stale.
Token = tuple[int, int]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The time limits of an agent.

    late_s + ask_s + grace_s has to stay below the scheduler's lease_margin_s: after that margin the scheduler considers
    the GPUs of an expired lease free.
    """

    report_interval_s: float = 30.0
    # A job that starts more slowly than this has its first step reported at once.
    first_step_s: float = 5.0
    # How long after the end of a lease the agent still waits for a renewal.
    late_s: float = 1.0
    # From the request to checkpoint and stop until the signal.
    ask_s: float = 20.0
    # From the signal to the leader until the group is killed, and between further attempts to kill it.
    grace_s: float = 5.0
    # For how many jobs the newest attempt is remembered.
    jobs_kept_max: int = 4096


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The user's description of how to start the job. The scheduler has checked it; the core only passes it on."""

    # Either an argument vector, or lines for /bin/sh.
    command: tuple[str, ...] = ()
    script: str = ""
    # Lines for /bin/sh that are run once per node before the ranks start.
    setup: str = ""
    # A virtual environment, put first on PATH.
    venv: str = ""
    # A path that every node sees, or one within the upload.
    workdir: str = ""
    # The digest of a package that is unpacked for the job.
    upload: str = ""
    env: dict[str, str] = {}
    # By name of variable: the secret on the node, as "secret:PATH".
    env_from: dict[str, str] = {}
    # Empty: a directory for the job in the agent's checkpoint directory.
    checkpoint_dir: str = ""
    ranks: Literal["per_gpu", "per_node"] = "per_gpu"
    # per_attempt: each attempt begins with a copy of the last one's checkpoints.
    checkpoints: Literal["per_job", "per_attempt"] = "per_job"
    # None: the agent's own limit.
    setup_limit_s: float | None = None


class Order(msgspec.Struct, frozen=True, gc=False):
    """One node's part of a lease: run the job on these GPUs until the end. The agent has nothing to choose.

    The first twelve fields are kept with the run on disk (`record`); a restarted agent has only these.
    """

    lease: str
    job: str
    attempt: int
    # Local indexes.
    gpus: tuple[int, ...]
    ends_s: float
    # The epoch of the scheduler that granted the lease; with the attempt, the token.
    epoch: int = 0
    node_rank: int = 0
    nodes: int = 1
    world_size: int = 1
    rendezvous: str = ""
    steps_max: float | None = None
    # Whether this lease will not be renewed. The agent then stops the job at its end, and waits for no late renewal.
    last: bool = False
    name: str = ""
    user: str = ""
    # The first rank on this node, if each GPU has a rank.
    rank_first: int = 0
    array_index: int | None = None
    # Whether another job is on the same GPUs.
    packed: bool = False
    # None in simulations, and for runs of an earlier agent.
    launch: Launch | None = None

    @property
    def token(self) -> Token:
        """The token of this attempt."""
        return self.epoch, self.attempt

    def record(self) -> dict[str, object]:
        """Return the fields that the files of a run keep, as plain data."""
        return {field: getattr(self, field) for field in self.__struct_fields__[:_RECORDED]}

    def named(self, **more: object) -> dict[str, object]:
        """Return the fields of a log line about this order."""
        return {"job": self.job, "lease": self.lease, "attempt": self.attempt, **more}


_RECORDED = Order.__struct_fields__.index("last") + 1


class Phase(Enum):
    """The state of an order, from accepted to ended."""

    # Until the earlier processes on its GPUs are gone.
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    # The job was asked to checkpoint and stop.
    ASKED = "asked"
    SIGNALLED = "signalled"
    KILLED = "killed"


# Module-level names, because every order is compared with them and a look-up in the Enum takes five times as long.
WAITING, STARTING, RUNNING = Phase.WAITING, Phase.STARTING, Phase.RUNNING
ASKED, SIGNALLED, KILLED = Phase.ASKED, Phase.SIGNALLED, Phase.KILLED


class Run(msgspec.Struct, kw_only=True, gc=False):
    """An order and its state, kept until its processes are gone."""

    order: Order
    ends_s: float
    phase: Phase = Phase.WAITING
    # Whether the newest set has the order; False once the run is stopping.
    in_set: bool = True
    # `Order.last` in the newest set.
    last: bool = False
    # When the next step of stopping is due.
    due_s: float = math.inf
    started_s: float = math.inf
    # When its start or progress was last reported.
    reported_s: float = math.inf
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0
    # Whether it has made progress that was not reported yet.
    changed: bool = False


# ---------------------------------------------------------------------------------------------------- events


class Desired(msgspec.Struct, frozen=True, gc=False):
    """The full set of orders from now on. For its round, its ends take precedence over a Renewed."""

    epoch: int
    generation: int
    orders: tuple[Order, ...]
    round_number: int = 0
    # By lease: why it ends, for the log of its job.
    why_ended: dict[str, str] = {}


class Renewed(msgspec.Struct, frozen=True, gc=False):
    """In this round, the orders of this generation's set end at `ends_s`, except those that are stopping."""

    epoch: int
    generation: int
    round_number: int
    ends_s: float


class ProcessStarted(msgspec.Struct, frozen=True, gc=False):
    """The processes of an order have started."""

    lease: str


class ProcessFound(msgspec.Struct, frozen=True):
    """A restarted agent has found processes of an order that its predecessor started."""

    order: Order
    # None while the run is still being prepared.
    ran_s: float | None = 0.0
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0


class ProcessExited(msgspec.Struct, frozen=True, gc=False):
    """All processes of an order are gone."""

    lease: str
    outcome: Outcome
    steps: float
    saved: float
    stepping_s: float
    ran_s: float
    code: int = 0


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """The progress of a job: its steps in all, and its seconds of stepping under this lease."""

    lease: str
    steps: float
    saved: float
    stepping_s: float


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The scheduler has made the report of this number durable."""

    number: int


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """The scheduler can be reached."""


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The scheduler cannot be reached."""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The time `AgentCore.tick_s` has come."""


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
    """Ask the job, through its lease file, to checkpoint and stop."""

    lease: str


class SignalLeader(msgspec.Struct, frozen=True, gc=False):
    """Send SIGTERM to the leaders alone: the job did not stop when asked."""

    lease: str


class KillGroup(msgspec.Struct, frozen=True, gc=False):
    """Kill every process of the order: it did not stop when signalled."""

    lease: str


class Held(msgspec.Struct, frozen=True, gc=False):
    """An order that this agent is responsible for: it has processes, or their exit is about to be reported."""

    lease: str
    steps: float
    ran_s: float


class SendHello(msgspec.Struct, frozen=True):
    """Send the first message of a new link: this node is up, and is responsible for these orders."""

    held: tuple[Held, ...] = ()


Action = StartProcess | AskToStop | SignalLeader | KillGroup | SendHello

# --------------------------------------------------------------------------------------------------- reports


class Report(msgspec.Struct, frozen=True, gc=False):
    """The news since the last report. The scheduler sends its set again if that is newer than `generation`."""

    number: int
    generation: int
    started: tuple[str, ...] = ()
    progress: tuple[Progressed, ...] = ()
    exits: tuple[ProcessExited, ...] = ()
