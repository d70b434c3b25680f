"""The state of the scheduler. Only `apply` changes it; everything else reads it.

A snapshot holds the primary part of the state. From this part, `restore` rebuilds the derived part: tables such as the
holders of GPUs, the active jobs and the dependents of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from scheduler.core.accounts.cached import CachedBook
from scheduler.core.facts import AllocationAdopted
from scheduler.core.snapshot import FIELDS, NEVER_S, Asked, Request, Round, decode, encode
from scheduler.model.budgets import Account, AccountId, Budgets
from scheduler.model.cluster import UP, Node
from scheduler.model.errors import NotFound
from scheduler.model.gpu_quotas import GpuQuotas
from scheduler.model.job_quotas import JobQuotas
from scheduler.model.jobs import Job, JobSpec, JobState
from scheduler.model.lease import HOLDING, STOPPING, WAITING, GpuId, Holding, nodes_of
from scheduler.model.measured import MeasuredBook
from scheduler.model.node_losses import NodeLosses
from scheduler.model.settings import Settings
from scheduler.model.shares import ShareTable
from scheduler.model.throughput import RateBook
from scheduler.rounds.inputs import Held

# Names of stores of checkpoints, as in `NodeSpec.store`.
Stores = tuple[str, ...]


class SchedulerState:
    """The state of one scheduler."""

    __slots__ = (
        *("now_s", "epoch", "settings", "prices", "jobs", "requests", "arrays", "next_job", "next_lease"),
        *("nodes", "generation_floor", "doubtful", "next_order", "adopted_s", "reshaped"),
        *("measured", "cached", "losses"),
        *("leases", "round", "asked", "stale", "allocation", "shares", "rates"),
        *("active", "to_review", "picky", "protectable", "on_hold", "may_have_saved", "stores", "dependents"),
        *("held_leases", "holders", "claims", "blocks"),
        *("gpus_of", "_gpus_in_order", "size_of_type", "isolated_rate", "cluster_version"),
        *("gpu_quotas", "running_quotas", "unfinished_quotas", "quotas_from_lease", "owners"),
        *("budgets", "spent"),
    )

    # By worker type: how long leases ran, and how many ended with the loss of their node.
    losses: dict[str, NodeLosses]

    def __init__(self) -> None:
        self.now_s, self.epoch, self.adopted_s = 0.0, 0, 0.0
        self.settings = Settings()
        self.prices: dict[str, float] = {}  # by worker type
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}  # by idempotency key
        self.arrays: dict[str, list[str]] = {}
        self.next_job = self.next_lease = 1
        self.nodes: dict[str, Node] = {}
        # The highest `Node.generation` of any node that was removed. Every new node starts from it.
        self.generation_floor = 0
        self.leases: dict[str, Holding] = {}
        self.round, self.asked = Round(), Asked()
        # Whether jobs, capacity or rates changed since the solver was last asked.
        self.stale = False
        self.allocation: AllocationAdopted | None = None  # adopted at `adopted_s`
        self.shares = ShareTable()
        self.rates, self.measured, self.losses = RateBook(), MeasuredBook(), {}
        self.cached = CachedBook()
        # Whether records were lost, so that nodes may run leases that the state does not have.
        self.doubtful = False
        # The `Job.order` of the next job. It does not fall when jobs are forgotten.
        self.next_order = 0
        # Reshaped jobs, by the last question to the solver before the change. Older shares are void for them.
        self.reshaped: dict[str, int] = {}
        # What was spent of budgets in their present periods.
        self.spent: dict[AccountId, Account] = {}
        self._begin_derived()

    def _begin_derived(self) -> None:
        """Begin the derived part: that of no jobs and no nodes."""
        # The jobs that have not ended, in order of submission.
        self.active: dict[str, Job] = {}
        # Active jobs that `on_jobs.review` checks: those with limits, dependencies, an earliest start or a pause.
        self.to_review: dict[str, Job] = {}
        # Active jobs that restrict their nodes (`JobSpec.is_picky`).
        self.picky: set[str] = set()
        # Active jobs that can be protected from preemption.
        self.protectable: set[str] = set()
        # Active jobs in the state `held`.
        self.on_hold: set[str] = set()
        # Active jobs that have started, so that they may have a checkpoint or will save one when they stop.
        self.may_have_saved: set[str] = set()
        # How many nodes reach each store of checkpoints.
        self.stores: dict[str, int] = {}
        # By job: the jobs that wait for its end.
        self.dependents: dict[str, list[str]] = {}
        # By job: the bundle and GPUs of its lease, if the lease is not ending.
        self.held_leases: dict[str, Held] = {}
        # By GPU: leases that may have processes on it.
        self.holders: dict[GpuId, tuple[str, ...]] = {}
        # By GPU: leases that wait for it.
        self.claims: dict[GpuId, tuple[str, ...]] = {}
        # By lease: leases that wait until it is closed.
        self.blocks: dict[str, list[str]] = {}
        # By job of the allocation: the rate that it would have with an equal part of the cluster.
        self.isolated_rate: dict[str, float] = {}
        # All GPUs of each node, including broken ones.
        self.gpus_of: dict[str, tuple[GpuId, ...]] = {}
        # The items of `gpus_of`, sorted by node; empty if they have to be sorted again.
        self._gpus_in_order: list[tuple[str, tuple[GpuId, ...]]] = []
        # The number of GPUs by worker type, whatever the state of their nodes.
        self.size_of_type: dict[str, int] = {}
        # The number of unfinished jobs, by tenant and user.
        self.owners = Counter[tuple[str, str]]()
        # Increases with every change of nodes or settings.
        self.cluster_version = 0
        self.enter_quotas()

    def job(self, job: str) -> Job:
        """Return a job; raise NotFound if there is none with this id."""
        known = self.jobs.get(job)
        if known is None:
            if members := self.arrays.get(job):
                raise NotFound(f"'{job}' is an array; give the id of a member, such as {members[0]}")
            raise NotFound(f"there is no job '{job}'")
        return known

    def node(self, node: str) -> Node:
        """Return a node; raise NotFound if there is none with this name."""
        known = self.nodes.get(node)
        if known is None:
            raise NotFound(f"there is no node '{node}'")
        return known

    def eligible(self, job: Job, now_s: float) -> bool:
        """Whether a job may get GPUs: it is not held, blocked or pausing, and its earliest start has passed."""
        if job.blocked_by or job.state in _INELIGIBLE or job.again_s > now_s:
            return False
        wait_s = job.spec.earliest_start_s
        return not wait_s or now_s >= job.submitted_s + wait_s

    def eligible_jobs(self, now_s: float) -> Mapping[str, Job]:
        """Return all jobs that may get GPUs now. Nearly always, these are all active jobs."""
        on_hold, to_review = self.on_hold, self.to_review
        if not (on_hold or to_review):
            return self.active
        return {
            name: job
            for name, job in self.active.items()
            if name not in on_hold and (name not in to_review or self.eligible(job, now_s))
        }

    def index_spec(self, job: Job) -> None:
        """Enter an active job into the derived sets that depend on its spec, or take it out of them."""
        if job.needs_review:
            self.to_review[job.id] = job
        else:
            self.to_review.pop(job.id, None)
        for is_in, names in ((job.spec.is_picky, self.picky), (job.may_be_protected, self.protectable)):
            if is_in:
                names.add(job.id)
            else:
                names.discard(job.id)

    def confined_to(self, job: Job) -> Stores:
        """Return the stores to which the job's last checkpoint confines it; empty if it may run on every node.

        A gang that saved on the disks of several nodes has several stores; its rank 0 must start at the first of them.
        """
        if job.checkpoint_at:
            stores: Stores = (job.checkpoint_at, *job.checkpoint_beside)
        elif len(self.stores) <= 1 or job.id not in self.may_have_saved:
            return ()
        else:
            stores = self.saves_at(job)
        return () if not stores or self.stores.get(stores[0]) == len(self.nodes) else stores

    def saves_at(self, job: Job) -> Stores:
        """Return the stores to which a running job will save when it stops; empty if it is not running."""
        for name in (job.lease, job.leaving):
            holding = self.leases.get(name or "")
            if holding is not None and holding.started_s is not None:
                nodes = nodes_of(holding.lease.gpus)
                first, *others = dict.fromkeys(self.nodes[name].spec.store for name in nodes)
                if not others:
                    return (first,)
                others_gpus = sum(n.spec.gpus for n in self.nodes.values() if n.spec.store in others)
                # Rank 0 must start at the first store. So the other stores are allowed only if the job does not fit
                # on their nodes alone.
                return (first, *others) if others_gpus < job.spec.narrowest else (first,)
        return ()

    def lease_end_s(self, holding: Holding) -> float:
        """Return when a lease ends: at its own end if it has one, otherwise with the round."""
        return self.round.ends_s if holding.ends_s is None else holding.ends_s

    def usable_nodes(self) -> list[Node]:
        """Return the nodes that can get work, sorted by name."""
        return [node for _, node in sorted(self.nodes.items()) if node.state is UP]

    def snapshot(self) -> bytes:
        """Encode the primary part. Equal states have equal bytes.

        This may run in a thread, as long as nothing changes the state.
        """
        primary: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        primary["shares"], primary["rates"] = self.shares.rows(), self.rates.rows()
        primary["spent"] = [self.spent[account] for account in sorted(self.spent)]
        primary["measured"], primary["cached"] = self.measured.rows(), self.cached.rows()
        return encode(primary)

    @classmethod
    def restore(cls, data: bytes) -> SchedulerState:
        """Restore the state from which `snapshot` was made."""
        primary = decode(data)
        state = cls()
        for name in FIELDS:
            setattr(state, name, getattr(primary, name))
        # Snapshots of older releases hold -inf.
        state.asked.at_s = max(state.asked.at_s, NEVER_S)
        state.shares = ShareTable.from_rows(primary.shares)
        state.rates = RateBook.from_rows(primary.rates)
        state.spent = {account.id: account for account in primary.spent}
        state.measured, state.cached = MeasuredBook(primary.measured), CachedBook(primary.cached)
        state.jobs = dict(sorted(primary.jobs.items(), key=lambda item: item[1].order))
        state._fill_in()
        state.leases = dict(sorted(primary.leases.items(), key=lambda item: int(item[0])))
        state.reindex()
        return state

    def _fill_in(self) -> None:
        """Fill in fields that snapshots of older releases lack."""
        # Releases without `next_order` forgot no jobs, so the last job has the highest `order`.
        if self.jobs:
            self.next_order = max(self.next_order, next(reversed(self.jobs.values())).order + 1)
        for request in self.requests.values():
            if not request.at_s and request.jobs and request.jobs[0] in self.jobs:
                request.at_s = self.jobs[request.jobs[0]].submitted_s

    def replace_by(self, other: SchedulerState) -> None:
        """Take over everything from `other`, which must not be used afterwards. References to `self` stay valid."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def reindex(self) -> None:
        """Rebuild the derived part."""
        self.active = {job.id: job for job in self.jobs.values() if not job.is_terminal}
        self.owners = Counter((job.spec.tenant, job.spec.user) for job in self.active.values())
        self.to_review, self.picky, self.protectable = {}, set(), set()
        for job in self.active.values():
            self.index_spec(job)
        self.on_hold = {job.id for job in self.active.values() if job.state is JobState.HELD}
        self.may_have_saved = {
            job.id for job in self.active.values() if job.checkpoint_at or job.started_s is not None
        }
        self.dependents = {}
        for job in self.active.values():
            for other in sorted(job.blocked_by):
                self.dependents.setdefault(other, []).append(job.id)
        self.held_leases, self.holders, self.claims, self.blocks = {}, {}, {}, {}
        for holding in self.leases.values():
            if holding.phase is not STOPPING:
                self.enter_held(holding)
            if holding.phase in HOLDING:
                self.hold(holding)
            else:
                self.claim(holding)
        self.isolated_rate = {}
        if self.allocation is not None:
            rates = self.allocation.shares
            self.isolated_rate = dict(zip(rates.jobs, rates.isolated_rate, strict=False))
        self.gpus_of, self.size_of_type, self.stores = {}, {}, {}
        for node in self.nodes.values():
            self.add_node(node)
        self.cluster_version += 1
        self.enter_quotas()

    # The steps that `apply` and `reindex` share.

    def enter_quotas(self) -> None:
        """Derive the quotas, because the settings or the tenant of a job changed."""
        self.gpu_quotas = GpuQuotas(self.settings)
        self.budgets = Budgets(self.settings)
        self.running_quotas = JobQuotas(self.settings, "jobs_running")
        self.unfinished_quotas = JobQuotas(self.settings, "jobs_unfinished")
        # Older leases than this one may exceed the quotas.
        self.quotas_from_lease = self.next_lease

    def add_node(self, node: Node) -> None:
        """Add a node to the derived tables."""
        spec = node.spec
        self.gpus_of[spec.name] = node.every_gpu
        self._gpus_in_order = []
        self.size_of_type[spec.worker_type] = self.size_of_type.get(spec.worker_type, 0) + spec.gpus
        self.stores[spec.store] = self.stores.get(spec.store, 0) + 1

    def drop_node(self, node: Node) -> None:
        """Remove a node from the derived tables, because it was removed or will change."""
        spec = node.spec
        del self.gpus_of[spec.name]
        self._gpus_in_order = []
        self.size_of_type[spec.worker_type] -= spec.gpus
        if not self.size_of_type[spec.worker_type]:
            del self.size_of_type[spec.worker_type]
        self.stores[spec.store] -= 1
        if not self.stores[spec.store]:
            del self.stores[spec.store]

    def enter_held(self, holding: Holding) -> None:
        """Enter a lease in `held_leases`, from which rounds are planned. The lease must not be ending."""
        lease = holding.lease
        self.held_leases[lease.job] = Held(holding.bundle, lease.gpus)

    def hold(self, holding: Holding) -> None:
        """Enter a lease as a holder of its GPUs. If there are two holders, the older lease comes first."""
        own_id = holding.lease.id
        for gpu in holding.lease.gpus:
            holders = self.holders.get(gpu)
            self.holders[gpu] = tuple(sorted((*holders, own_id), key=int)) if holders else (own_id,)

    def claim(self, holding: Holding) -> None:
        """Enter a lease as waiting for its GPUs."""
        for gpu in holding.lease.gpus:
            self.claims[gpu] = (*self.claims.get(gpu, ()), holding.lease.id)
        for other in sorted(holding.waits_for):
            self.blocks.setdefault(other, []).append(holding.lease.id)

    def let_go(self, holding: Holding) -> None:
        """Remove a lease from the table of its GPUs: from `claims` if it is waiting, otherwise from `holders`."""
        table = self.claims if holding.phase is WAITING else self.holders
        own_id = holding.lease.id
        for gpu in holding.lease.gpus:
            leases = table[gpu]
            if len(leases) == 1:
                del table[gpu]
            else:
                table[gpu] = tuple([lease for lease in leases if lease != own_id])

    def renumber_sets(self, holding: Holding) -> None:
        """Give each node of this lease a new generation number, because the node's set of leases changed."""
        for name in nodes_of(holding.lease.gpus):
            node = self.nodes.get(name)
            if node is not None:
                node.generation += 1

    def on_node(self, node: str) -> list[Holding]:
        """Return the leases that may have processes on a node, oldest first."""
        holders, leases = self.holders, self.leases
        gpus = self.gpus_of[node]
        if len(gpus) == 1:
            return [leases[name] for name in holders.get(gpus[0], ())]
        names = {name for gpu in gpus for name in holders.get(gpu, ())}
        return [leases[name] for name in sorted(names, key=int)]

    def left_out(self, spec: JobSpec) -> list[str]:
        """Return the nodes with GPUs for plans of a job whose agents ignore plans, sorted by name."""
        types = {plan.worker_type for plan in spec.plans}
        nodes = [node.spec for node in self.nodes.values()] if types else []
        return sorted(node.name for node in nodes if node.ignores_plans and node.worker_type in types)

    def nodes_in_use(self) -> list[str]:
        """Return the nodes on which leases may have processes, sorted by name."""
        if not self._gpus_in_order:
            self._gpus_in_order = sorted(self.gpus_of.items())
        holders = self.holders
        is_idle = holders.keys().isdisjoint
        return [
            name
            for name, gpus in self._gpus_in_order
            if gpus[0] in holders or (len(gpus) > 1 and not is_idle(gpus))
        ]


# The states in which a job gets no GPUs.
_INELIGIBLE = frozenset({"held", "completed", "failed", "cancelled"})
