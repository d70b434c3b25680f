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
    # If a job needs at least this long to start, its first step is reported at once.
    first_step_s: float = 5.0
    # How long after the end of a lease the agent still waits for a renewal.
    late_s: float = 1.0
    # The time between asking a job to checkpoint and stop, and signalling it.
    ask_s: float = 20.0
    # The time between signalling the leader and killing the group, and between further attempts to kill the group.
    grace_s: float = 5.0
    # For how many jobs the newest attempt is remembered.
    jobs_kept_max: int = 4096


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal of an interactive job."""

    # A real terminal; otherwise, pipes.
    tty: bool = False
    # The size at the start; 0: the usual one.
    rows: int = 0
    columns: int = 0
    # How long the process continues without a client; None: the agent's setting.
    keep_s: float | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The container in which the processes of a job run; the fields are those of the protocol."""

    image: str = ""
    runtime: str = ""
    mounts: tuple[str, ...] = ()
    env: dict[str, str] = {}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The user's description of how to start the job. The scheduler has checked it; the core only passes it on."""

    # Either an argument vector, or lines for /bin/sh.
    command: tuple[str, ...] = ()
    script: str = ""
    # Lines for /bin/sh that are run once per node before the ranks start.
    setup: str = ""
    # A virtual environment, put first on PATH.
    venv: str = ""
    # A path that is valid on every node; with an upload, a path within the upload.
    workdir: str = ""
    # The digest of a package that is unpacked for the job.
    upload: str = ""
    env: dict[str, str] = {}
    # By the name of a variable: the secret on the node that becomes the variable's value, as "secret:PATH".
    env_from: dict[str, str] = {}
    # If empty, the job has a directory of its own in the agent's checkpoint directory.
    checkpoint_dir: str = ""
    # Whether the job has one process (rank) for each GPU, or one for each node.
    ranks: Literal["per_gpu", "per_node"] = "per_gpu"
    # per_attempt: each attempt begins with a copy of the previous attempt's checkpoints.
    checkpoints: Literal["per_job", "per_attempt"] = "per_job"
    # If None, the agent's own limit applies.
    setup_limit_s: float | None = None
    # None: the job is not interactive.
    terminal: Terminal | None = None
    container: Container | None = None
    # Patterns of files in the work directory that are kept longer than an unpacked package.
    outputs: tuple[str, ...] = ()


class Order(msgspec.Struct, frozen=True, gc=False):
    """One node's part of a lease: run the job on these GPUs until the end. The agent has nothing to choose.

    The first twelve fields and `mtbf_s` are kept with the run on disk (`record`); a restarted agent has only these.
    """

    lease: str
    job: str
    attempt: int
    # The indexes of the GPUs on this node.
    gpus: tuple[int, ...]
    # The end of the lease.
    ends_s: float
    # The epoch of the scheduler that granted the lease. Epoch and attempt form the token.
    epoch: int = 0
    # The position of this node among the nodes of the lease.
    node_rank: int = 0
    nodes: int = 1
    # The number of GPUs of the lease on all its nodes.
    world_size: int = 1
    # The address of the first node.
    rendezvous: str = ""
    # How many steps complete the whole job; None if that is unknown.
    steps_max: float | None = None
    # Whether this lease will not be renewed. The agent then stops the job at the end, without waiting for a renewal.
    last: bool = False
    # The name of the job, and the user who submitted it.
    name: str = ""
    user: str = ""
    # The first rank on this node, if each GPU has a rank.
    rank_first: int = 0
    array_index: int | None = None
    # Whether another job is on the same GPUs.
    packed: bool = False
    # None in simulations, and for runs that an earlier agent started.
    launch: Launch | None = None
    # The document of the plan by which the job runs, as JSON; empty if it has no plans.
    plan: str = ""
    # How much longer than usual the job may take to save and end after it was asked.
    extra_save_s: float = 0.0
    # The time between failures of nodes that would stop this job, on average; 0: none were seen.
    mtbf_s: float = 0.0
    # The CPUs that the job asks for here; 0: it asks for none.
    cpus: float = 0.0
    # The loader workers of a rank with which its loop would not wait for data; 0: unknown.
    workers: int = 0

    @property
    def token(self) -> Token:
        """The token of this attempt."""
        return self.epoch, self.attempt

    def record(self) -> dict[str, object]:
        """Return the fields that the files of a run keep, as plain data."""
        fields = {field: getattr(self, field) for field in self.__struct_fields__[:_RECORDED]}
        return fields | {"mtbf_s": self.mtbf_s}

    def log_fields(self, **more: object) -> dict[str, object]:
        """Return the fields of a log line about this order."""
        return {"job": self.job, "lease": self.lease, "attempt": self.attempt, **more}


_RECORDED = Order.__struct_fields__.index("last") + 1


class Phase(Enum):
    """The state of an order, from accepted to ended."""

    # Earlier processes on the order's GPUs are not gone yet.
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


class Run(msgspec.Struct, kw_only=True):
    """An order and its state, kept until its processes are gone."""

    order: Order
    ends_s: float
    phase: Phase = Phase.WAITING
    # Whether the newest set of orders (Desired) includes this order; always False while the run is stopping.
    in_set: bool = True
    # The value of `Order.last` in the newest set.
    last: bool = False
    # When a run that is stopping is next signalled or killed.
    due_s: float = math.inf
    # When the processes started.
    started_s: float = math.inf
    # When the start or the progress of the run was last reported.
    reported_s: float = math.inf
    # The newest progress of the job, with the fields of Progressed.
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0
    # Whether this progress was not reported yet.
    changed: bool = False
    # The value of `Order.extra_save_s` in the newest set.
    extra_save_s: float = 0.0
    # From the start of the processes to the first step, once `stepping_s` is above 0.
    start_s: float = math.inf
    # What the job has measured about itself, and the values of it that were reported.
    measured: dict[str, float] = {}
    reported: dict[str, float] = {}


# ---------------------------------------------------------------------------------------------------- events


class Desired(msgspec.Struct, frozen=True, gc=False):
    """The full set of this node's orders, in place of the last set.

    The ends of these orders take precedence over the end in a Renewed for the same round.
    """

    epoch: int
    generation: int
    orders: tuple[Order, ...]
    round_number: int = 0
    # The reasons why leases end, by lease, for the logs of their jobs.
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
    # How long the job has run under this lease; None while the run is being prepared.
    ran_s: float | None = 0.0
    # The progress of the job, with the fields of Progressed.
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0


class ProcessExited(msgspec.Struct, frozen=True, gc=False):
    """All processes of an order are gone."""

    lease: str
    outcome: Outcome
    # The last progress of the job, with the fields of Progressed.
    steps: float
    saved: float
    stepping_s: float
    # How long the job ran under this lease.
    ran_s: float
    # The exit code of the job; 0 if there is none.
    code: int = 0


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """The progress of a job. Steps count from the job's first attempt, seconds from the beginning of this lease."""

    lease: str
    # The steps done.
    steps: float
    # The steps in the newest checkpoint.
    saved: float
    # The seconds spent on steps, without saving checkpoints.
    stepping_s: float


class Measured(msgspec.Struct, frozen=True):
    """Values that a job has measured about itself, by the keys in progress-RANK.json, merged over its ranks here."""

    lease: str
    values: dict[str, float]


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
    | Measured
    | Taken
    | LinkUp
    | LinkDown
    | Tick
)

# --------------------------------------------------------------------------------------------------- actions


class StartProcess(msgspec.Struct, frozen=True, gc=False):
    """Start the processes of an order. ProcessStarted or, if that fails, ProcessExited follows."""

    order: Order


class AskToStop(msgspec.Struct, frozen=True, gc=False):
    """Ask the job, through its lease file, to checkpoint and stop."""

    lease: str


class SignalLeader(msgspec.Struct, frozen=True, gc=False):
    """Send SIGTERM only to the leaders of a job that did not stop when asked."""

    lease: str


class KillGroup(msgspec.Struct, frozen=True, gc=False):
    """Kill every process of a job that did not stop when signalled."""

    lease: str


class Held(msgspec.Struct, frozen=True, gc=False):
    """An order that this agent is responsible for: it has processes, or the scheduler may not have its exit yet."""

    lease: str
    steps: float
    ran_s: float


class SendHello(msgspec.Struct, frozen=True):
    """Send the first message of a new link: this node is up, and is responsible for these orders."""

    held: tuple[Held, ...] = ()


Action = StartProcess | AskToStop | SignalLeader | KillGroup | SendHello

# --------------------------------------------------------------------------------------------------- reports


class Report(msgspec.Struct, frozen=True, gc=False):
    """The news since the last report.

    `generation`: that of the newest set that the agent has. A scheduler with a newer set sends that set again.
    """

    number: int
    generation: int
    # The leases whose processes have started.
    started: tuple[str, ...] = ()
    progress: tuple[Progressed, ...] = ()
    exits: tuple[ProcessExited, ...] = ()
    measured: tuple[Measured, ...] = ()
