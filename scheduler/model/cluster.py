"""Nodes: GPUs of one type in one box, and whether they can be used."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import GpuId

OWN_DISK = "node:"  # begins the name of the place that only one node sees


class NodeState(StrEnum):
    """Whether a node can be given work."""

    UP = "up"
    DRAINING = "draining"  # finishes its round, gets nothing new
    SILENT = "silent"  # unreachable, which is not dead: its leases run to their end
    LOST = "lost"  # its leases have lapsed
    FAULTY = "faulty"  # starts keep failing there, or its agent reports trouble: it gets nothing new for now


UP, SILENT, FAULTY = (
    NodeState.UP,
    NodeState.SILENT,
    NodeState.FAULTY,
)  # by names of their own, for what is asked of every node


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a node says of itself when it joins."""

    name: str
    worker_type: str
    gpus: int
    labels: dict[str, str] = {}
    cpus: float | None = None  # None: not limited by CPUs
    memory_gb: float | None = None
    gpu_memory_gb: float | None = None
    storage: str = (
        ""  # the store for checkpoints that it sees, by a name; empty: its own disk, which nobody else sees
    )

    @property
    def place(self) -> str:
        """Where a job that runs here saves its checkpoints."""
        return self.storage or OWN_DISK + self.name

    def checked(self) -> NodeSpec:
        """This spec, or InvalidSpec naming the first field that cannot be right."""
        for field in ("name", "worker_type"):
            value = getattr(self, field)
            if not value or not _is_plain(value):
                raise InvalidSpec(
                    field, f"is {bounds.shown(value)}, must be a plain name without ':', '/' or spaces"
                )
        if not _is_plain(self.storage):
            raise InvalidSpec(
                "storage",
                f"is {bounds.shown(self.storage)}, must be empty or a plain name without ':', '/' or spaces",
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
    """A node as the scheduler keeps it."""

    spec: NodeSpec
    state: NodeState = NodeState.UP
    why: str = ""
    since_s: float = 0.0
    generation: int = 0  # of its set of leases; an older one is refused by the agent
    broken: set[int] = msgspec.field(default_factory=set)  # GPUs that reported a fatal error
    # GPUs on which an ended job may have left processes.
    withheld: set[int] = msgspec.field(default_factory=set)
    drained: bool = False  # somebody wants it empty, whatever else becomes of it
    left: bool = False  # it was its own agent, which stopped: the next one undoes that
    # The jobs of the starts in a row that failed here.
    failed_starts: list[str] = msgspec.field(default_factory=list)
    pauses: int = 0  # how often in a row it was taken out of use for them
    back_s: float | None = None  # when it is tried again; None where its agent has to report first

    @property
    def gpu_ids(self) -> tuple[GpuId, ...]:
        """GPUs that can be used when the node can."""
        name = self.spec.name
        return tuple(
            f"{name}:{i}" for i in range(self.spec.gpus) if i not in self.broken and i not in self.withheld
        )

    @property
    def every_gpu(self) -> tuple[GpuId, ...]:
        """All GPUs, broken ones too."""
        return tuple(f"{self.spec.name}:{i}" for i in range(self.spec.gpus))

    def fits(self, spec: JobSpec) -> bool:
        """Whether one GPU's worth of the job fits an empty node of this kind, whatever runs there now."""
        mine = self.spec
        if not spec.may_use(mine.worker_type) or (spec.nodes and mine.name not in spec.nodes):
            return False
        if any(mine.labels.get(key) != value for key, value in spec.labels.items()):
            return False
        if mine.gpu_memory_gb is not None and spec.gpu_memory_gb > mine.gpu_memory_gb:
            return False
        part = 1.0 / spec.gpus
        if mine.cpus is not None and spec.cpus * part > mine.cpus:
            return False
        return mine.memory_gb is None or spec.memory_gb * part <= mine.memory_gb


def gpus_for(node: Node, spec: JobSpec) -> int:
    """How many GPUs' worth of the job an empty node takes: all that fit its CPUs and memory too."""
    if not node.fits(spec):
        return 0
    most = len(node.gpu_ids)
    if node.spec.cpus is not None:
        most = _times(node.spec.cpus * spec.gpus, spec.cpus, most)
    if node.spec.memory_gb is not None:
        most = _times(node.spec.memory_gb * spec.gpus, spec.memory_gb, most)
    return most


def _times(amount: float, each: float, most: int) -> int:
    """How often `each` fits into an amount, at most `most`. Compared first: the quotient may be beyond any number."""
    return most if amount >= each * most else math.floor(amount / each + 1e-9)
