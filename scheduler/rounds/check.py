"""An audit of a plan that trusts none of what made it: it shares no code with rank, select, place, limit or fill.

Each rule is a function from what it sees to what it finds wrong, in words that name the job or the GPU.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.audit_order import Turn, parts_given, turn_of
from scheduler.rounds.inputs import ANYWHERE, Held, NodeView, RoundInputs, RoundPlan

SLACK = 1e-6  # of a CPU, of a GB


def check_plan(inputs: RoundInputs, plan: RoundPlan) -> list[str]:
    """What is wrong with the plan; empty when nothing is."""
    seen = Seen(inputs, plan)
    return [fault for rule in RULES for fault in rule(seen)]


class Seen:
    """The plan, looked at from the sides that the rules need."""

    def __init__(self, inputs: RoundInputs, plan: RoundPlan) -> None:
        self.inputs = inputs
        self.plan = plan
        self.row_of = {bundle: row for row, bundle in enumerate(inputs.candidates.bundles)}
        self.node_of: dict[GpuId, NodeView] = {gpu: node for node in inputs.nodes for gpu in node.gpus}
        self.place_of = {
            job: (bundle, gpus) for bundle, gpus in plan.placements.items() for job in bundle.jobs
        }
        self.shares = inputs.candidates.share.tolist()

    def stays(self, job: str) -> bool:
        """Whether the job runs on as it did: same GPUs, same type, width and label."""
        now, then = self.inputs.held.get(job), self.place_of.get(job)
        return now is not None and then is not None and then[1] == now.gpus and then[0][1:] == now.bundle[1:]

    def is_pinned(self, job: str) -> bool:
        """Whether the job has to keep its GPUs."""
        return job in self.inputs.held and self.inputs.held[job].pinned

    def goes_on(self, bundle: Bundle) -> bool:
        """Whether the column is there because one of its jobs has a right to its GPUs, whatever its share."""
        limited = self.inputs.preemptions_max is not None
        return any(self.stays(job) and (limited or self.is_pinned(job)) for job in bundle.jobs)

    def turn(self, bundle: Bundle) -> Turn:
        """When it is the column's turn: smaller is earlier. Last of all when it is no candidate."""
        row = self.row_of.get(bundle)
        return (math.inf,) if row is None else turn_of(self.inputs, row, self.given)

    def turn_of_holder(self, bundle: Bundle) -> Turn:
        """The turn of a column that runs; of jobs that stay, the earliest of all columns they could stay with."""
        staying = {job for job in bundle.jobs if self.stays(job)}
        rows = self.rows_by_way.get(bundle[1:], ()) if staying else ()
        turns = [self.turn(other) for other in rows if staying & set(other.jobs)]
        return min([self.turn(bundle), *turns])

    @cached_property
    def given(self) -> list[float]:
        """By worker type: the part of what was promised that is given out."""
        return parts_given(self.inputs)

    @cached_property
    def rows_by_way(self) -> dict[tuple[str, int, str], list[Bundle]]:
        """The candidates by type, width and label."""
        ways: dict[tuple[str, int, str], list[Bundle]] = {}
        for bundle in self.inputs.candidates.bundles:
            ways.setdefault(bundle[1:], []).append(bundle)
        return ways

    @cached_property
    def idle(self) -> dict[str, list[GpuId]]:
        """GPUs that nobody is given, nor keeps, by node."""
        busy = {gpu for gpus in self.plan.placements.values() for gpu in gpus}
        busy |= {gpu for now in self.inputs.held.values() if now.pinned for gpu in now.gpus}
        return {node.name: [gpu for gpu in node.gpus if gpu not in busy] for node in self.inputs.nodes}

    @cached_property
    def sharing(self) -> dict[tuple[GpuId, ...], list[str]]:
        """The jobs that hold the same GPUs, without those that are to leave."""
        known = set(self.inputs.jobs)
        sharing: dict[tuple[GpuId, ...], list[str]] = {}
        for job, now in self.inputs.held.items():
            mine = sharing.setdefault(now.gpus, [])
            if job in known or now.pinned:
                mine.append(job)
        return sharing

    @cached_property
    def asked(self) -> Mapping[tuple[str, str], float]:
        """CPUs and memory that the plan uses, by node and resource."""
        return self._sum({job: gpus for job, (_, gpus) in self.place_of.items()})

    @cached_property
    def asked_before(self) -> Mapping[tuple[str, str], float]:
        """CPUs and memory that are used as the round is planned."""
        return self._sum({job: now.gpus for job, now in self.inputs.held.items()})

    def _sum(self, gpus_of: Mapping[str, tuple[GpuId, ...]]) -> Mapping[tuple[str, str], float]:
        asked: defaultdict[tuple[str, str], float] = defaultdict(float)
        for job, need in self.inputs.needs.items():
            for gpu in gpus_of.get(job, ()):
                if gpu in self.node_of:
                    name = self.node_of[gpu].name
                    asked[name, "CPUs"] += need.cpus_per_gpu
                    asked[name, "GB"] += need.memory_gb_per_gpu
        return asked

    def room(self, node: NodeView, bundle: Bundle) -> int:
        """How many more GPUs' worth of the column the node takes."""
        room = len(self.idle[node.name])
        needs = [self.inputs.needs[job] for job in bundle.jobs if job in self.inputs.needs]
        if any(need.nodes is not None and node.name not in need.nodes for need in needs):
            return 0
        for resource, limit, each in (
            ("CPUs", node.cpus, sum(need.cpus_per_gpu for need in needs)),
            ("GB", node.memory_gb, sum(need.memory_gb_per_gpu for need in needs)),
        ):
            while room and each > 0 and self.asked[node.name, resource] + each * room > limit + SLACK / 1000:
                room -= 1
        return room

    def held_back(self, worker_type: str) -> set[str]:
        """The nodes on which GPUs are held back."""
        bundle = self.plan.reserved.get(worker_type)
        if bundle is None:
            return set()
        allowed = [self.inputs.needs[job].nodes for job in bundle.jobs if job in self.inputs.needs]
        return {
            node.name
            for node in self.inputs.nodes
            if self.inputs.worker_types[node.worker_type] == worker_type
            and all(names is None or node.name in names for names in allowed)
        }


Rule = Callable[[Seen], Iterator[str]]


def _is_of_this_round(seen: Seen) -> Iterator[str]:
    if seen.plan.number != seen.inputs.number:
        yield f"the plan is for round {seen.plan.number}, asked was round {seen.inputs.number}"


def _jobs_once(seen: Seen) -> Iterator[str]:
    for job, count in Counter(job for bundle in seen.plan.placements for job in bundle.jobs).items():
        if count > 1:
            yield f"job {job} is in {count} columns"


def _gpus_once(seen: Seen) -> Iterator[str]:
    holder: dict[GpuId, Bundle] = {}
    for bundle, gpus in seen.plan.placements.items():
        for gpu in gpus:
            if gpu in holder:
                yield f"GPU {gpu} is given to {' + '.join(holder[gpu].jobs)} and to {' + '.join(bundle.jobs)}"
            holder[gpu] = bundle


def _gangs_whole(seen: Seen) -> Iterator[str]:
    for bundle, gpus in seen.plan.placements.items():
        if len(gpus) != bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} is given {len(gpus)} GPUs, its column has {bundle.gpus}"


def _gpus_usable(seen: Seen) -> Iterator[str]:
    for bundle, gpus in seen.plan.placements.items():
        kept = {job for job in bundle.jobs if seen.is_pinned(job) and seen.stays(job)}
        if kept and all(job in kept or seen.stays(job) for job in bundle.jobs):
            continue  # runs on where nothing new may start
        for gpu in gpus:
            node = seen.node_of.get(gpu)
            if node is None:
                yield f"{' + '.join(bundle.jobs)} is given GPU {gpu}, which cannot be used"
            elif (kind := seen.inputs.worker_types[node.worker_type]) != bundle.worker_type:
                wanted = bundle.worker_type
                yield f"{' + '.join(bundle.jobs)} is given GPU {gpu} of type {kind}, its column is for {wanted}"


def _only_candidates(seen: Seen) -> Iterator[str]:
    for bundle in seen.plan.placements:
        pinned = [job for job in bundle.jobs if seen.is_pinned(job) and seen.stays(job)]
        if bundle not in seen.row_of and len(pinned) < len(bundle.jobs):
            yield f"{' + '.join(bundle.jobs)} runs as {bundle}, which is no candidate"


def _pinned_keep_gpus(seen: Seen) -> Iterator[str]:
    for job, now in seen.inputs.held.items():
        if now.pinned and not seen.stays(job):
            then = seen.place_of.get(job)
            yield f"pinned job {job} loses GPUs {', '.join(now.gpus)}" + (
                f" for {', '.join(then[1])}" if then else ""
            )


def _needs_met(seen: Seen) -> Iterator[str]:
    for job, (_, gpus) in seen.place_of.items():
        need = seen.inputs.needs.get(job, ANYWHERE)
        if seen.is_pinned(job):
            continue
        for node in {
            seen.node_of[gpu].name: seen.node_of[gpu] for gpu in gpus if gpu in seen.node_of
        }.values():
            if need.nodes is not None and node.name not in need.nodes:
                yield f"job {job} is put on node {node.name}, which it may not use"
            for resource, limit, each in (
                ("CPUs", node.cpus, need.cpus_per_gpu),
                ("GB", node.memory_gb, need.memory_gb_per_gpu),
            ):
                if each > 0 and seen.asked[node.name, resource] > limit + SLACK:
                    yield (
                        f"job {job} is on node {node.name}, where {seen.asked[node.name, resource]:g} {resource} "
                        f"are asked for and {limit:g} are there"
                    )


def _zero_shares_do_not_run(seen: Seen) -> Iterator[str]:
    for bundle in seen.plan.placements:
        row = seen.row_of.get(bundle)
        if (
            row is None
            or seen.shares[row] > 0
            or seen.inputs.candidates.backfill[row]
            or seen.goes_on(bundle)
        ):
            continue
        yield f"{' + '.join(bundle.jobs)} runs on {bundle.worker_type} with share 0 and may not fill idle GPUs"


def _reservations_are_due(seen: Seen) -> Iterator[str]:
    columns = seen.inputs.candidates
    for worker_type, bundle in seen.plan.reserved.items():
        name = f"the reservation of {worker_type} for {' + '.join(bundle.jobs)}"
        row = seen.row_of.get(bundle)
        if row is None or bundle.worker_type != worker_type:
            yield f"{name} is for no candidate of this type"
        elif bundle.gpus < 2 or seen.shares[row] == 0 or columns.skipped[row] < seen.inputs.reserve_after:
            share, skipped = seen.shares[row], columns.skipped[row]
            yield f"{name} is not due: {bundle.gpus} GPUs, share {share}, skipped {skipped} times"
        elif bundle in seen.plan.placements:
            yield f"{name} is for what runs already"


def _reservations_respected(seen: Seen) -> Iterator[str]:
    for worker_type, reserved in seen.plan.reserved.items():
        shut, turn = seen.held_back(worker_type), seen.turn(reserved)
        for bundle, gpus in seen.plan.placements.items():
            taken = [gpu for gpu in gpus if gpu in seen.node_of and seen.node_of[gpu].name in shut]
            if taken and not any(seen.stays(job) for job in bundle.jobs) and seen.turn(bundle) > turn:
                yield f"{' + '.join(bundle.jobs)} takes GPU {taken[0]}, held back for {' + '.join(reserved.jobs)}"


def _waiting_gangs_have_reservations(seen: Seen) -> Iterator[str]:
    """Where only GPUs count: a gang that waited long enough, and had GPUs enough but for pinned jobs behind it."""
    columns = seen.inputs.candidates
    if any(need != ANYWHERE for need in seen.inputs.needs.values()):
        return
    for row in (columns.skipped >= seen.inputs.reserve_after).nonzero()[0].tolist():
        bundle = columns.bundles[row]
        if bundle.gpus < 2 or seen.shares[row] == 0 or bundle.worker_type in seen.plan.reserved:
            continue
        if any(job in seen.place_of for job in bundle.jobs):
            continue
        turn = seen.turn(bundle)
        mine = [
            (one, gpus) for one, gpus in seen.plan.placements.items() if one.worker_type == bundle.worker_type
        ]
        behind = {gpu for one, gpus in mine if seen.turn_of_holder(one) > turn for gpu in gpus}
        idle = sum(
            len(seen.idle[node.name])
            for node in seen.inputs.nodes
            if seen.inputs.worker_types[node.worker_type] == bundle.worker_type
        )
        if len(behind) + idle >= bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} waits for {bundle.gpus} GPUs of {bundle.worker_type}; none are held back"


def _skipped_are_gangs(seen: Seen) -> Iterator[str]:
    for bundle in seen.plan.skipped:
        row = seen.row_of.get(bundle)
        if row is None or bundle.gpus < 2 or seen.shares[row] == 0:
            yield f"{' + '.join(bundle.jobs)} is called skipped, but is no gang with a share"
        elif bundle in seen.plan.placements:
            yield f"{' + '.join(bundle.jobs)} is called skipped, but runs"


def _preemptions_limited(seen: Seen) -> Iterator[str]:
    most = seen.inputs.preemptions_max
    if most is not None:
        lost = sorted(
            job
            for job, now in seen.inputs.held.items()
            if _could_stay(seen, job, now) and not seen.stays(job)
        )
        if len(lost) > most:
            yield f"{len(lost)} running jobs lose their GPUs, {most} may: {', '.join(lost)}"


def _could_stay(seen: Seen, job: str, now: Held) -> bool:
    """Whether an unpinned job could go on as it is: its GPUs, its column, and what it needs are all there."""
    inputs = seen.inputs
    sharing = seen.sharing[now.gpus]
    bundle = now.bundle._replace(jobs=tuple(sorted(sharing)))
    if now.pinned or job not in sharing or bundle not in seen.row_of:
        return False
    for gpu in now.gpus:
        node = seen.node_of.get(gpu)
        if node is None or inputs.worker_types[node.worker_type] != bundle.worker_type:
            return False
        allowed = [inputs.needs.get(one, ANYWHERE).nodes for one in sharing]
        if any(names is not None and node.name not in names for names in allowed):
            return False
        if (
            seen.asked_before[node.name, "CPUs"] > node.cpus
            or seen.asked_before[node.name, "GB"] > node.memory_gb
        ):
            return False
    return True


def _nothing_idles_in_vain(seen: Seen) -> Iterator[str]:
    """No idle GPUs that a column could use as they are: it may run, its jobs do not, and nobody has to move."""
    inputs = seen.inputs
    by_type: dict[str, list[NodeView]] = {}
    for node in inputs.nodes:
        if seen.idle[node.name]:
            by_type.setdefault(inputs.worker_types[node.worker_type], []).append(node)
    idle = {kind: sum(len(seen.idle[node.name]) for node in there) for kind, there in by_type.items()}
    for row, bundle in enumerate(inputs.candidates.bundles):
        if idle.get(bundle.worker_type, 0) < bundle.gpus or any(job in seen.place_of for job in bundle.jobs):
            continue
        if seen.shares[row] == 0 and not inputs.candidates.backfill[row]:
            continue
        shut = seen.held_back(bundle.worker_type)
        if shut and seen.turn(bundle) <= seen.turn(seen.plan.reserved[bundle.worker_type]):
            shut = set()
        there = [
            node for node in by_type[bundle.worker_type] if node.name not in shut and seen.room(node, bundle)
        ]
        if sum(seen.room(node, bundle) for node in there) >= bundle.gpus:
            yield f"{' + '.join(bundle.jobs)} could run on idle GPUs, such as {seen.idle[there[0].name][0]}"


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
    _nothing_idles_in_vain,
)
