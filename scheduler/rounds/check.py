"""Audit a plan independently, without any code of rank, select, place, limit or fill.

Each rule is a function that yields the faults that it finds. A fault is a text that names the job or the GPU.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.audit_order import SortKey, parts_given, sort_key
from scheduler.rounds.inputs import ANYWHERE, Held, NodeView, RoundInputs, RoundPlan

# The tolerance in CPUs and in GB.
SLACK = 1e-6


def check_plan(inputs: RoundInputs, plan: RoundPlan) -> list[str]:
    """Return the faults of the plan; empty if there are none."""
    audit = Audit(inputs, plan)
    return [fault for rule in RULES for fault in rule(audit)]


class Audit:
    """A plan and its inputs, with the indexes that the rules use."""

    def __init__(self, inputs: RoundInputs, plan: RoundPlan) -> None:
        self.inputs = inputs
        self.plan = plan
        self.row_of = {bundle: row for row, bundle in enumerate(inputs.candidates.bundles)}
        self.node_of: dict[GpuId, NodeView] = {gpu: node for node in inputs.nodes for gpu in node.gpus}
        self.placement_of = {
            job: (bundle, gpus) for bundle, gpus in plan.placements.items() for job in bundle.jobs
        }
        self.shares = inputs.candidates.share.tolist()

    def granule(self, bundle: Bundle) -> int:
        """Return how many GPUs of the column must be together; 1 for a column that is no candidate."""
        return self.inputs.candidates.columns.granules.get(self.row_of.get(bundle, -1), 1)

    def split_granules(self, bundle: Bundle, gpus: tuple[GpuId, ...]) -> int:
        """Return a number of these GPUs on one node that is no multiple of the column's granule; 0 if there is none."""
        counts = Counter(self.node_of[gpu].name for gpu in gpus if gpu in self.node_of)
        return next((count for count in counts.values() if count % self.granule(bundle)), 0)

    def stays(self, job: str) -> bool:
        """Whether the job keeps its GPUs, type, width and label."""
        holding, placement = self.inputs.held.get(job), self.placement_of.get(job)
        if holding is None or placement is None:
            return False
        bundle, gpus = placement
        return gpus == holding.gpus and bundle[1:] == holding.bundle[1:]

    def is_pinned(self, job: str) -> bool:
        """Whether the job must keep its GPUs."""
        return job in self.inputs.held and self.inputs.held[job].pinned

    def may_run_without_share(self, bundle: Bundle) -> bool:
        """Whether the column may run without a share, because one of its jobs has a right to keep its GPUs."""
        limited = self.inputs.preemptions_max is not None
        return any(self.stays(job) and (limited or self.is_pinned(job)) for job in bundle.jobs)

    def sort_key(self, bundle: Bundle) -> SortKey:
        """Return the column's sort key in the order of columns; a column that is no candidate comes last."""
        row = self.row_of.get(bundle)
        return (math.inf,) if row is None else sort_key(self.inputs, row, self.parts_given)

    def best_sort_key(self, bundle: Bundle) -> SortKey:
        """Return the best sort key of this column and of all others in which its staying jobs could keep their GPUs."""
        staying = {job for job in bundle.jobs if self.stays(job)}
        rows = self.candidates_by_way.get(bundle[1:], ()) if staying else ()
        keys = [self.sort_key(other) for other in rows if staying & set(other.jobs)]
        return min([self.sort_key(bundle), *keys])

    @cached_property
    def parts_given(self) -> list[float]:
        """See `audit_order.parts_given`."""
        return parts_given(self.inputs)

    @cached_property
    def candidates_by_way(self) -> dict[tuple[str, int, str], list[Bundle]]:
        """All candidates, by worker type, width and label: the way in which they run."""
        ways: dict[tuple[str, int, str], list[Bundle]] = {}
        for bundle in self.inputs.candidates.bundles:
            ways.setdefault(bundle[1:], []).append(bundle)
        return ways

    @cached_property
    def idle(self) -> dict[str, list[GpuId]]:
        """The GPUs that no job gets and no pinned job holds, by node."""
        busy = {gpu for gpus in self.plan.placements.values() for gpu in gpus}
        busy |= {gpu for holding in self.inputs.held.values() if holding.pinned for gpu in holding.gpus}
        return {node.name: [gpu for gpu in node.gpus if gpu not in busy] for node in self.inputs.nodes}

    @cached_property
    def sharing(self) -> dict[tuple[GpuId, ...], list[str]]:
        """The jobs that hold each set of GPUs, without jobs that have to leave."""
        known = set(self.inputs.jobs)
        sharing: dict[tuple[GpuId, ...], list[str]] = {}
        for job, holding in self.inputs.held.items():
            holders = sharing.setdefault(holding.gpus, [])
            if job in known or holding.pinned:
                holders.append(job)
        return sharing

    @cached_property
    def used(self) -> Mapping[tuple[str, str], float]:
        """The CPUs and memory that the plan uses, by node and resource."""
        return self._sum({job: gpus for job, (_, gpus) in self.placement_of.items()})

    @cached_property
    def used_before(self) -> Mapping[tuple[str, str], float]:
        """The CPUs and memory in use when the round is planned, by node and resource."""
        return self._sum({job: holding.gpus for job, holding in self.inputs.held.items()})

    def _sum(self, gpus_of: Mapping[str, tuple[GpuId, ...]]) -> Mapping[tuple[str, str], float]:
        used: defaultdict[tuple[str, str], float] = defaultdict(float)
        for job, need in self.inputs.needs.items():
            for gpu in gpus_of.get(job, ()):
                if gpu in self.node_of:
                    name = self.node_of[gpu].name
                    used[name, "CPUs"] += need.cpus_per_gpu
                    used[name, "GB"] += need.memory_gb_per_gpu
        return used

    def room(self, node: NodeView, bundle: Bundle) -> int:
        """Return how many more GPUs of the node the column could use."""
        room = len(self.idle[node.name])
        needs = [self.inputs.needs[job] for job in bundle.jobs if job in self.inputs.needs]
        if any(need.nodes is not None and node.name not in need.nodes for need in needs):
            return 0
        for resource, limit, each in (
            ("CPUs", node.cpus, sum(need.cpus_per_gpu for need in needs)),
            ("GB", node.memory_gb, sum(need.memory_gb_per_gpu for need in needs)),
        ):
            # Stricter than SLACK, so that room that the planner found too small is not reported as a fault.
            while room and each > 0 and self.used[node.name, resource] + each * room > limit + SLACK / 1000:
                room -= 1
        return room // self.granule(bundle) * self.granule(bundle)

    def held_back(self, worker_type: str) -> set[str]:
        """Return the names of the nodes of this type on which GPUs are held back."""
        bundle = self.plan.reserved.get(worker_type)
        if bundle is None:
            return set()
        allowed = [self.inputs.needs[job].nodes for job in bundle.jobs if job in self.inputs.needs]
        return {
            node.name
            for node in self.inputs.nodes
            if self.inputs.worker_types[node.worker_type] == worker_type
            and len(node.gpus) >= self.granule(bundle)
            and all(names is None or node.name in names for names in allowed)
        }


Rule = Callable[[Audit], Iterator[str]]


def _is_of_this_round(audit: Audit) -> Iterator[str]:
    if audit.plan.number != audit.inputs.number:
        yield f"the plan is for round {audit.plan.number} instead of round {audit.inputs.number}"


def _jobs_once(audit: Audit) -> Iterator[str]:
    for job, count in Counter(job for bundle in audit.plan.placements for job in bundle.jobs).items():
        if count > 1:
            yield f"job {job} is in {count} columns"


def _gpus_once(audit: Audit) -> Iterator[str]:
    holder: dict[GpuId, Bundle] = {}
    for bundle, gpus in audit.plan.placements.items():
        for gpu in gpus:
            if gpu in holder:
                yield f"GPU {gpu} is given to {' + '.join(holder[gpu].jobs)} and to {' + '.join(bundle.jobs)}"
            holder[gpu] = bundle


def _gangs_whole(audit: Audit) -> Iterator[str]:
    for bundle, gpus in audit.plan.placements.items():
        if len(gpus) != bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} is given {len(gpus)} GPUs instead of {bundle.gpus}"
        split, granule = audit.split_granules(bundle, gpus), audit.granule(bundle)
        if split and not all(map(audit.is_pinned, bundle.jobs)):
            name = " + ".join(bundle.jobs)
            yield f"{name} has {split} GPUs on a node, not a multiple of {granule}: {', '.join(gpus)}"


def _gpus_usable(audit: Audit) -> Iterator[str]:
    for bundle, gpus in audit.plan.placements.items():
        kept = {job for job in bundle.jobs if audit.is_pinned(job) and audit.stays(job)}
        if kept and all(job in kept or audit.stays(job) for job in bundle.jobs):
            # A pinned job may continue on GPUs where nothing new may start.
            continue
        for gpu in gpus:
            node = audit.node_of.get(gpu)
            if node is None:
                yield f"{' + '.join(bundle.jobs)} is given GPU {gpu}, which cannot be used"
            elif (kind := audit.inputs.worker_types[node.worker_type]) != bundle.worker_type:
                column_type = bundle.worker_type
                yield f"{' + '.join(bundle.jobs)} is given GPU {gpu} of type {kind} instead of {column_type}"


def _only_candidates(audit: Audit) -> Iterator[str]:
    for bundle in audit.plan.placements:
        pinned = [job for job in bundle.jobs if audit.is_pinned(job) and audit.stays(job)]
        if bundle not in audit.row_of and len(pinned) < len(bundle.jobs):
            yield f"{' + '.join(bundle.jobs)} runs as {bundle}, which is no candidate"


def _pinned_keep_gpus(audit: Audit) -> Iterator[str]:
    for job, holding in audit.inputs.held.items():
        if holding.pinned and not audit.stays(job):
            placement = audit.placement_of.get(job)
            yield f"pinned job {job} loses GPUs {', '.join(holding.gpus)}" + (
                f" for {', '.join(placement[1])}" if placement else ""
            )


def _needs_met(audit: Audit) -> Iterator[str]:
    for job, (_, gpus) in audit.placement_of.items():
        need = audit.inputs.needs.get(job, ANYWHERE)
        if audit.is_pinned(job):
            continue
        for node in {
            audit.node_of[gpu].name: audit.node_of[gpu] for gpu in gpus if gpu in audit.node_of
        }.values():
            if need.nodes is not None and node.name not in need.nodes:
                yield f"job {job} is placed on node {node.name}, which it may not use"
            for resource, limit, each in (
                ("CPUs", node.cpus, need.cpus_per_gpu),
                ("GB", node.memory_gb, need.memory_gb_per_gpu),
            ):
                if each > 0 and audit.used[node.name, resource] > limit + SLACK:
                    yield (
                        f"job {job} is on node {node.name}, where jobs need {audit.used[node.name, resource]:g} "
                        f"{resource} and {limit:g} are there"
                    )


def _zero_shares_do_not_run(audit: Audit) -> Iterator[str]:
    for bundle in audit.plan.placements:
        row = audit.row_of.get(bundle)
        if (
            row is None
            or audit.shares[row] > 0
            or audit.inputs.candidates.backfill[row]
            or audit.may_run_without_share(bundle)
        ):
            continue
        yield f"{' + '.join(bundle.jobs)} runs on {bundle.worker_type} with share 0 and may not fill idle GPUs"


def _reservations_are_due(audit: Audit) -> Iterator[str]:
    candidates = audit.inputs.candidates
    for worker_type, bundle in audit.plan.reserved.items():
        name = f"the reservation of {worker_type} for {' + '.join(bundle.jobs)}"
        row = audit.row_of.get(bundle)
        if row is None or bundle.worker_type != worker_type:
            yield f"{name} is for no candidate of this type"
        elif (
            bundle.gpus < 2 or audit.shares[row] == 0 or candidates.skipped[row] < audit.inputs.reserve_after
        ):
            share, skipped = audit.shares[row], candidates.skipped[row]
            yield f"{name} is not due: {bundle.gpus} GPUs, share {share}, skipped {skipped} times"
        elif bundle in audit.plan.placements:
            yield f"{name} is for a column that runs already"


def _reservations_respected(audit: Audit) -> Iterator[str]:
    for worker_type, reserved in audit.plan.reserved.items():
        closed_nodes, key = audit.held_back(worker_type), audit.sort_key(reserved)
        for bundle, gpus in audit.plan.placements.items():
            overlap = [
                gpu for gpu in gpus if gpu in audit.node_of and audit.node_of[gpu].name in closed_nodes
            ]
            if overlap and not any(audit.stays(job) for job in bundle.jobs) and audit.sort_key(bundle) > key:
                yield f"{' + '.join(bundle.jobs)} takes GPU {overlap[0]}, held back for {' + '.join(reserved.jobs)}"


def _waiting_gangs_have_reservations(audit: Audit) -> Iterator[str]:
    """Find gangs that waited long enough and could have had enough GPUs, yet got no reservation.

    The rule only counts GPUs, so it does not apply if any job needs CPUs, memory, certain nodes or GPUs in groups.
    """
    candidates = audit.inputs.candidates
    if candidates.columns.granules or any(need != ANYWHERE for need in audit.inputs.needs.values()):
        return
    for row in (candidates.skipped >= audit.inputs.reserve_after).nonzero()[0].tolist():
        bundle = candidates.bundles[row]
        if bundle.gpus < 2 or audit.shares[row] == 0 or bundle.worker_type in audit.plan.reserved:
            continue
        if any(job in audit.placement_of for job in bundle.jobs):
            continue
        key = audit.sort_key(bundle)
        worse_ranked = {
            gpu
            for other, gpus in audit.plan.placements.items()
            if other.worker_type == bundle.worker_type and audit.best_sort_key(other) > key
            for gpu in gpus
        }
        idle = sum(
            len(audit.idle[node.name])
            for node in audit.inputs.nodes
            if audit.inputs.worker_types[node.worker_type] == bundle.worker_type
        )
        if len(worse_ranked) + idle >= bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} waits for {bundle.gpus} GPUs of {bundle.worker_type}; none are held back"


def _skipped_are_gangs(audit: Audit) -> Iterator[str]:
    for bundle in audit.plan.skipped:
        row = audit.row_of.get(bundle)
        if row is None or bundle.gpus < 2 or audit.shares[row] == 0:
            yield f"{' + '.join(bundle.jobs)} is listed as skipped, but is no gang with a share"
        elif bundle in audit.plan.placements:
            yield f"{' + '.join(bundle.jobs)} is listed as skipped, but runs"


def _preemptions_limited(audit: Audit) -> Iterator[str]:
    limit = audit.inputs.preemptions_max
    if limit is not None:
        lost = sorted(
            job
            for job, holding in audit.inputs.held.items()
            if _could_stay(audit, job, holding) and not audit.stays(job)
        )
        if len(lost) > limit:
            yield f"{len(lost)} running jobs lose their GPUs; the limit is {limit}: {', '.join(lost)}"


def _could_stay(audit: Audit, job: str, holding: Held) -> bool:
    """Whether a job is not pinned and could keep its GPUs: its column, node, CPUs and memory are still available."""
    inputs = audit.inputs
    sharing = audit.sharing[holding.gpus]
    bundle = holding.bundle._replace(jobs=tuple(sorted(sharing)))
    if holding.pinned or job not in sharing or bundle not in audit.row_of:
        return False
    for gpu in holding.gpus:
        node = audit.node_of.get(gpu)
        if node is None or inputs.worker_types[node.worker_type] != bundle.worker_type:
            return False
        allowed = [inputs.needs.get(other, ANYWHERE).nodes for other in sharing]
        if any(names is not None and node.name not in names for names in allowed):
            return False
        if (
            audit.used_before[node.name, "CPUs"] > node.cpus
            or audit.used_before[node.name, "GB"] > node.memory_gb
        ):
            return False
    return not audit.split_granules(bundle, holding.gpus)


def _idle_gpus_have_no_use(audit: Audit) -> Iterator[str]:
    """Find idle GPUs that a waiting column could use without moving any other job."""
    inputs = audit.inputs
    by_type: dict[str, list[NodeView]] = {}
    for node in inputs.nodes:
        if audit.idle[node.name]:
            by_type.setdefault(inputs.worker_types[node.worker_type], []).append(node)
    idle = {kind: sum(len(audit.idle[node.name]) for node in nodes) for kind, nodes in by_type.items()}
    for row, bundle in enumerate(inputs.candidates.bundles):
        if idle.get(bundle.worker_type, 0) < bundle.gpus or any(
            job in audit.placement_of for job in bundle.jobs
        ):
            continue
        if audit.shares[row] == 0 and not inputs.candidates.backfill[row]:
            continue
        closed_nodes = audit.held_back(bundle.worker_type)
        if closed_nodes and audit.sort_key(bundle) <= audit.sort_key(audit.plan.reserved[bundle.worker_type]):
            closed_nodes = set()
        usable_nodes = [
            node
            for node in by_type[bundle.worker_type]
            if node.name not in closed_nodes and audit.room(node, bundle)
        ]
        if sum(audit.room(node, bundle) for node in usable_nodes) >= bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} could run on idle GPUs, such as {audit.idle[usable_nodes[0].name][0]}"


RULES: tuple[Rule, ...] = (
    _is_of_this_round,
    _jobs_once,
    _gpus_once,
    _gangs_whole,
    _gpus_usable,
    _only_candidates,
    _pinned_keep_gpus,
    _needs_met,
    _zero_shares_do_not_run,
    _reservations_are_due,
    _reservations_respected,
    _waiting_gangs_have_reservations,
    _skipped_are_gangs,
    _preemptions_limited,
    _idle_gpus_have_no_use,
)
