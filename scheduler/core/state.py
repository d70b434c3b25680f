"""Everything the scheduler knows. Only `apply` changes it; everything else reads.

The true part is what a snapshot holds. The rest (marked as derived) follows from it and is rebuilt by `restore`:
who holds which GPU, which jobs are alive, who depends on whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.core.facts import AllocationAdopted
from scheduler.model.cluster import UP, Node
from scheduler.model.errors import NotFound
from scheduler.model.jobs import Job, JobState
from scheduler.model.launch import JobDecoder
from scheduler.model.lease import HOLDING, STOPPING, WAITING, Bundle, GpuId, Holding, nodes_of
from scheduler.model.settings import Settings
from scheduler.model.shares import ShareRows, ShareTable
from scheduler.model.throughput import RateBook, RateRows
from scheduler.rounds.inputs import Held

Places = tuple[str, ...]  # where checkpoints are (`NodeSpec.place`)


class Round(msgspec.Struct):
    """The round that runs, or ran last. Renewed leases end with it."""

    number: int = 0
    starts_s: float = 0.0
    ends_s: float = 0.0
    reserved: dict[str, Bundle] = msgspec.field(default_factory=dict)


class Request(msgspec.Struct):
    """One idempotency key: what was asked, and the jobs it led to."""

    digest: str
    jobs: list[str]
    at_s: float = 0.0  # of the submission


# When the solver was last asked, as long as it never was: before any time, and a number that can be counted with.
NEVER_S = -1e18


class Asked(msgspec.Struct):
    """The newest problem that went to the solver."""

    number: int = 0
    at_s: float = NEVER_S
    answered: bool = True


class Snapshot(msgspec.Struct, kw_only=True):
    """The true part of a state, as it is kept."""

    now_s: float
    epoch: int
    settings: Settings
    prices: dict[str, float]
    jobs: dict[str, Job]
    requests: dict[str, Request]
    arrays: dict[str, list[str]]
    next_job: int
    next_lease: int
    nodes: dict[str, Node]
    generation_floor: int = 0
    leases: dict[str, Holding]
    round: Round
    asked: Asked
    stale: bool
    allocation: AllocationAdopted | None
    shares: ShareRows
    rates: RateRows
    doubtful: bool = False
    next_order: int = 0
    adopted_s: float = 0.0


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = JobDecoder(msgspec.msgpack, Snapshot)


class SchedulerState:
    """The state of one scheduler."""

    __slots__ = (
        *(
            "now_s",
            "epoch",
            "settings",
            "prices",
            "jobs",
            "requests",
            "arrays",
            "next_job",
            "next_lease",
            "nodes",
            "generation_floor",
            "doubtful",
            "next_order",
            "adopted_s",
        ),
        *("leases", "round", "asked", "stale", "allocation", "shares", "rates"),
        *("active", "watched", "picky", "clinging", "on_hold", "saved", "places", "dependents"),
        *("held", "holders", "claims", "blocks"),
        *("gpus_of", "_gpus_in_order", "size_of_type", "isolated_rate", "cluster_version"),
    )

    def __init__(self) -> None:
        self.now_s = 0.0
        self.epoch = 0
        self.settings = Settings()
        self.prices: dict[str, float] = {}
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}
        self.arrays: dict[str, list[str]] = {}
        self.next_job = 1
        self.next_lease = 1
        self.nodes: dict[str, Node] = {}
        self.generation_floor = 0  # no node that was removed has seen a newer set than this
        self.leases: dict[str, Holding] = {}
        self.round = Round()
        self.asked = Asked()
        self.stale = False  # jobs, capacity or rates changed since the solver was last asked
        self.allocation: AllocationAdopted | None = None
        self.shares = ShareTable()
        self.rates = RateBook()
        self.doubtful = False  # records were lost: nodes may run what nobody here knows of
        self.next_order = 0  # of submission; grows on when jobs are forgotten
        self.adopted_s = 0.0  # when the allocation in force was adopted
        # derived
        self.active: dict[str, Job] = {}  # not in a terminal state, in order of submission
        # Active ones with limits, with a time to wait for, or with other jobs to wait for.
        self.watched: dict[str, Job] = {}
        self.picky: set[str] = set()  # active ones to which it matters which nodes they get
        self.clinging: set[str] = set()  # active ones that may keep their GPUs when their turn is over
        self.on_hold: set[str] = set()  # active ones that wait for a person
        self.saved: set[str] = set()  # active ones that may have a checkpoint, or will when they stop
        self.places: dict[str, int] = {}  # where checkpoints can be, and how many nodes see each
        self.dependents: dict[str, list[str]] = {}
        self.held: dict[str, Held] = {}  # by job: what its lease is for, if that is not ending
        self.holders: dict[GpuId, tuple[str, ...]] = {}  # leases that may have processes on it
        self.claims: dict[GpuId, tuple[str, ...]] = {}  # leases that wait for it
        self.blocks: dict[str, list[str]] = {}  # a lease → those that wait for it to close
        self.isolated_rate: dict[str, float] = {}
        self.gpus_of: dict[str, tuple[GpuId, ...]] = {}  # every GPU of a node, broken ones too
        self._gpus_in_order: list[tuple[str, tuple[GpuId, ...]]] = []  # the same by name; empty: not known
        self.size_of_type: dict[str, int] = {}  # GPUs, whatever state their nodes are in
        self.cluster_version = 0

    def job(self, job: str) -> Job:
        """A job by its id."""
        found = self.jobs.get(job)
        if found is None:
            raise NotFound(f"there is no job '{job}'")
        return found

    def node(self, node: str) -> Node:
        """A node by its name."""
        found = self.nodes.get(node)
        if found is None:
            raise NotFound(f"there is no node '{node}'")
        return found

    def eligible(self, job: Job, now_s: float) -> bool:
        """Whether a job may be given GPUs: it is neither held nor blocked nor pausing, and its time has come."""
        if job.blocked_by or job.state in _KEPT_BACK or job.again_s > now_s:
            return False
        wait_s = job.spec.earliest_start_s
        return not wait_s or now_s >= job.submitted_s + wait_s

    def eligible_jobs(self, now_s: float) -> Mapping[str, Job]:
        """All jobs that may be given GPUs now: nearly always all that are active."""
        on_hold, limited = self.on_hold, self.watched
        if not (on_hold or limited):
            return self.active
        return {
            name: job
            for name, job in self.active.items()
            if name not in on_hold and (name not in limited or self.eligible(job, now_s))
        }

    def confined_to(self, job: Job) -> Places:
        """The places whose nodes alone see the job's last checkpoint, or will; empty: all do, or there is none.

        Several where it is a gang over disks of their own: its ranks start where they were, rank 0 at the first.
        """
        if job.checkpoint_at:
            at: Places = (job.checkpoint_at, *job.checkpoint_beside)
        elif len(self.places) <= 1 or job.id not in self.saved:
            return ()
        else:
            at = self.saves_at(job)
        return () if not at or self.places.get(at[0]) == len(self.nodes) else at

    def saves_at(self, job: Job) -> Places:
        """Where a job that runs will have saved by the time that it stops: for `confined_to`."""
        for name in (job.lease, job.leaving):
            holding = self.leases.get(name or "")
            if holding is not None and holding.started_s is not None:
                nodes = nodes_of(holding.lease.gpus)
                first, *others = dict.fromkeys(self.nodes[name].spec.place for name in nodes)
                if not others:
                    return (first,)
                beside = sum(node.spec.gpus for node in self.nodes.values() if node.spec.place in others)
                # only where the others do not suffice without the first: nothing else keeps rank 0 there
                return (first, *others) if beside < job.spec.narrowest else (first,)
        return ()

    def lease_end_s(self, holding: Holding) -> float:
        """When a lease ends: with the round, unless it was ended."""
        return self.round.ends_s if holding.ends_s is None else holding.ends_s

    def usable_nodes(self) -> list[Node]:
        """Nodes that can be given work, by name."""
        return [node for _, node in sorted(self.nodes.items()) if node.state is UP]

    def snapshot(self) -> bytes:
        """The true part, as bytes. Equal states have equal bytes.

        It may run in a thread as long as the state does not change. There may be many jobs and keys, so they are
        encoded one by one: other threads get their turn in between.
        """
        true: dict[str, Any] = {name: getattr(self, name) for name in Snapshot.__struct_fields__}
        true["shares"], true["rates"] = self.shares.rows(), self.rates.rows()
        true["jobs"], true["requests"] = _packed(self.jobs), _packed(self.requests)
        return _encoder.encode(Snapshot(**true))

    @classmethod
    def restore(cls, data: bytes) -> SchedulerState:
        """The state that `snapshot` was made of."""
        true = _decoder.decode(data)
        state = cls()
        for name in Snapshot.__struct_fields__:
            setattr(state, name, getattr(true, name))
        state.asked.at_s = max(state.asked.at_s, NEVER_S)  # older snapshots say -inf
        state.shares = ShareTable.from_rows(true.shares)
        state.rates = RateBook.from_rows(true.rates)
        state.jobs = dict(sorted(true.jobs.items(), key=lambda item: item[1].order))
        state._complete()
        state.leases = dict(sorted(true.leases.items(), key=lambda item: int(item[0])))
        state.reindex()
        return state

    def _complete(self) -> None:
        """Fill in what snapshots of older releases lack. They have every job that ever was."""
        if self.jobs:
            self.next_order = max(self.next_order, next(reversed(self.jobs.values())).order + 1)
        for request in self.requests.values():
            if not request.at_s and request.jobs and request.jobs[0] in self.jobs:
                request.at_s = self.jobs[request.jobs[0]].submitted_s

    def become(self, other: SchedulerState) -> None:
        """Take over everything of another state, which must not be used any more; whoever has this one keeps it."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def reindex(self) -> None:
        """Rebuild what is derived."""
        self.active = {job.id: job for job in self.jobs.values() if not job.is_terminal}
        self.watched = {job.id: job for job in self.active.values() if job.is_watched}
        self.picky = {job.id for job in self.active.values() if job.spec.is_picky}
        self.clinging = {job.id for job in self.active.values() if job.clings}
        self.on_hold = {job.id for job in self.active.values() if job.state is JobState.HELD}
        self.saved = {
            job.id for job in self.active.values() if job.checkpoint_at or job.started_s is not None
        }
        self.dependents = {}
        for job in self.active.values():
            for other in sorted(job.blocked_by):
                self.dependents.setdefault(other, []).append(job.id)
        self.held, self.holders, self.claims, self.blocks = {}, {}, {}, {}
        for holding in self.leases.values():
            if holding.phase is not STOPPING:
                self.keep(holding)
            if holding.phase in HOLDING:
                self.hold(holding)
            else:
                self.claim(holding)
        self.isolated_rate = {}
        if self.allocation is not None:
            rates = self.allocation.shares
            self.isolated_rate = dict(zip(rates.jobs, rates.isolated_rate, strict=False))
        self.gpus_of, self.size_of_type, self.places = {}, {}, {}
        for node in self.nodes.values():
            self.add_node(node)
        self.cluster_version += 1

    # The small steps that `apply` and `reindex` share.

    def add_node(self, node: Node) -> None:
        """A node is there with what it has."""
        spec = node.spec
        self.gpus_of[spec.name] = node.every_gpu
        self._gpus_in_order = []
        self.size_of_type[spec.worker_type] = self.size_of_type.get(spec.worker_type, 0) + spec.gpus
        self.places[spec.place] = self.places.get(spec.place, 0) + 1

    def drop_node(self, node: Node) -> None:
        """A node is gone, or comes back as something else."""
        spec = node.spec
        del self.gpus_of[spec.name]
        self._gpus_in_order = []
        self.size_of_type[spec.worker_type] -= spec.gpus
        if not self.size_of_type[spec.worker_type]:
            del self.size_of_type[spec.worker_type]
        self.places[spec.place] -= 1
        if not self.places[spec.place]:
            del self.places[spec.place]

    def keep(self, holding: Holding) -> None:
        """The lease is not ending: it counts when a round is planned, as this bundle."""
        lease = holding.lease
        self.held[lease.job] = Held(holding.bundle, lease.gpus)

    def hold(self, holding: Holding) -> None:
        """The lease's GPUs are in its hands. Of two, the older one is first, whichever had them first."""
        mine = holding.lease.id
        for gpu in holding.lease.gpus:
            there = self.holders.get(gpu)
            self.holders[gpu] = tuple(sorted((*there, mine), key=int)) if there else (mine,)

    def claim(self, holding: Holding) -> None:
        """The lease's GPUs are promised to it."""
        for gpu in holding.lease.gpus:
            self.claims[gpu] = (*self.claims.get(gpu, ()), holding.lease.id)
        for other in sorted(holding.waits_for):
            self.blocks.setdefault(other, []).append(holding.lease.id)

    def let_go(self, holding: Holding) -> None:
        """The lease no longer holds or claims its GPUs."""
        table = self.claims if holding.phase is WAITING else self.holders
        mine = holding.lease.id
        for gpu in holding.lease.gpus:
            there = table[gpu]
            if len(there) == 1:
                del table[gpu]
            else:
                table[gpu] = tuple([lease for lease in there if lease != mine])

    def touch(self, holding: Holding) -> None:
        """The set of leases of these nodes changed."""
        for name in nodes_of(holding.lease.gpus):
            node = self.nodes.get(name)
            if node is not None:
                node.generation += 1

    def on_node(self, node: str) -> list[Holding]:
        """Leases that may have processes on a node, oldest first."""
        holders, leases = self.holders, self.leases
        gpus = self.gpus_of[node]
        if len(gpus) == 1:
            return [leases[name] for name in holders.get(gpus[0], ())]
        names = {name for gpu in gpus for name in holders.get(gpu, ())}
        return [leases[name] for name in sorted(names, key=int)]

    def in_use(self) -> list[str]:
        """Nodes on which leases may have processes, by name."""
        if not self._gpus_in_order:
            self._gpus_in_order = sorted(self.gpus_of.items())
        holders = self.holders
        is_idle = holders.keys().isdisjoint
        return [
            name
            for name, gpus in self._gpus_in_order
            if gpus[0] in holders or (len(gpus) > 1 and not is_idle(gpus))
        ]


def _packed(table: Mapping[str, msgspec.Struct]) -> msgspec.Raw:
    """A table as a map of msgpack, in its own order."""
    encode = _encoder.encode
    parts = [b"\xdf", len(table).to_bytes(4, "big")]  # map 32
    for name, row in table.items():
        parts += encode(name), encode(row)
    return msgspec.Raw(b"".join(parts))


_KEPT_BACK = frozenset({"held", "completed", "failed", "cancelled"})
