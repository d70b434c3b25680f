"""Nodes: GPUs of one type in one machine, and whether they can be used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import GpuId

# A node that keeps checkpoints on its own disk has its own store, named node:NAME.
OWN_DISK = "node:"


class NodeState(StrEnum):
    """Whether a node can be given work."""

    UP = "up"
    # Its jobs finish their round, and no new ones start there.
    DRAINING = "draining"
    # It cannot be reached, but may well be alive: its leases run to their end.
    SILENT = "silent"
    LOST = "lost"  # its leases have lapsed
    # Starts keep failing there, or its agent reported trouble. No jobs start there for now.
    FAULTY = "faulty"


# Every round uses these: a plain name is five times faster than looking the member up in its Enum.
UP, SILENT, FAULTY = (
    NodeState.UP,
    NodeState.SILENT,
    NodeState.FAULTY,
)


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A node's description of itself, sent when it joins."""

    name: str
    worker_type: str
    gpus: int
    labels: dict[str, str] = {}
    cpus: float | None = None  # None: no limit
    memory_gb: float | None = None
    gpu_memory_gb: float | None = None
    # The name of the checkpoint store that this node can reach. Empty: its own disk, which no other node sees.
    storage: str = ""
    # Its agent is of a release without plans, under which a job with plans would train without its plan.
    ignores_plans: bool = False

    @property
    def store(self) -> str:
        """The store in which jobs on this node save their checkpoints."""
        return self.storage or OWN_DISK + self.name

    def checked(self) -> NodeSpec:
        """Return this spec, or raise InvalidSpec naming the first field that is wrong."""
        for field in ("name", "worker_type"):
            value = getattr(self, field)
            if not value or not _is_plain(value):
                raise InvalidSpec(
                    field, f"is {bounds.readable(value)}, must be a plain name without ':', '/' or spaces"
                )
        if not _is_plain(self.storage):
            raise InvalidSpec(
                "storage",
                f"is {bounds.readable(self.storage)}, must be empty or a plain name without ':', '/' or spaces",
            )
        bounds.check_all(self, bounds.NODE)
        bounds.check_count("labels", self.labels, bounds.NODE_LABELS_MAX)
        for key, value in self.labels.items():
            bounds.check_text("labels", key)
            bounds.check_text(f"labels.{key}", value)
        return self


def _is_plain(name: str) -> bool:
    return len(name) <= bounds.NAME_CHARS_MAX and name.isprintable() and not set(name) & set(" :/\\")


class Node(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node in the scheduler's state."""

    spec: NodeSpec
    state: NodeState = NodeState.UP
    # The reason for `state`, and the time of its last change.
    why: str = ""
    since_s: float = 0.0
    # The number of its current set of leases. Its agent refuses sets with lower numbers.
    generation: int = 0
    # The indices of GPUs that reported a fatal error.
    broken: set[int] = msgspec.field(default_factory=set)
    # The indices of GPUs on which a job that ended may have left processes.
    withheld: set[int] = msgspec.field(default_factory=set)
    # Whether an operator, or its stopping agent, drained it. It stays drained when it goes silent and rejoins.
    drained: bool = False
    # Why it was drained, for when it has been silent meanwhile.
    drained_why: str = ""
    # Whether its agent drained it because the agent stopped. The next agent on this node resumes it.
    left: bool = False
    # The jobs whose starts on this node failed since the last start that succeeded.
    failed_starts: list[str] = msgspec.field(default_factory=list)
    # How many times in a row it was taken out of use for failed starts.
    pauses: int = 0
    # When a faulty node is tried again. None: once its agent reports that all is well.
    back_s: float | None = None

    @property
    def gpu_ids(self) -> tuple[GpuId, ...]:
        """The GPUs that are neither broken nor withheld."""
        name = self.spec.name
        return tuple(
            f"{name}:{i}" for i in range(self.spec.gpus) if i not in self.broken and i not in self.withheld
        )

    @property
    def every_gpu(self) -> tuple[GpuId, ...]:
        """All GPUs, including broken ones."""
        return tuple(f"{self.spec.name}:{i}" for i in range(self.spec.gpus))

    def fits(self, spec: JobSpec) -> bool:
        """Whether this node, if it were empty, could run one GPU's part of the job."""
        own = self.spec
        if not spec.may_use(own.worker_type) or (spec.nodes and own.name not in spec.nodes):
            return False
        if any(own.labels.get(key) != value for key, value in spec.labels.items()):
            return False
        if own.ignores_plans and spec.plans:
            return False
        if own.gpu_memory_gb is not None and spec.gpu_memory_gb > own.gpu_memory_gb:
            return False
        part = 1.0 / spec.gpus
        if own.cpus is not None and spec.cpus * part > own.cpus:
            return False
        return own.memory_gb is None or spec.memory_gb * part <= own.memory_gb


def gpus_for(node: Node, spec: JobSpec) -> int:
    """Return how many GPUs of this node, if it were empty, the job could use, given the CPUs and memory it needs."""
    if not node.fits(spec):
        return 0
    most = len(node.gpu_ids)
    if node.spec.cpus is not None:
        most = _times(node.spec.cpus * spec.gpus, spec.cpus, most)
    if node.spec.memory_gb is not None:
        most = _times(node.spec.memory_gb * spec.gpus, spec.memory_gb, most)
    return most


def in_groups(gpus: Iterable[int], granule: int) -> int:
    """Return how many GPUs there are in groups of `granule`, given the number of GPUs on each node."""
    return sum(count - count % granule for count in gpus)


def _times(amount: float, each: float, most: int) -> int:
    """Return how many times `each` fits into `amount`, up to `most`."""
    # Compare before dividing: the quotient may overflow.
    return most if amount >= each * most else math.floor(amount / each + 1e-9)


def why_commanded(action: str, user: str, reason: str) -> str:
    """Return the reason for the state of a node that an operator drained or resumed."""
    return (f"{action} by {user}" if user else action) + (f": {reason}" if reason else "")


def commanded_by(why: str) -> str:
    """Return the user in such a reason; empty if there is none. Names of users have no colon."""
    return why.partition(":")[0].partition(" by ")[2]
