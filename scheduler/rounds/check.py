"""Audit a plan independently, without any code of rank, select, place, limit or fill.

Each rule is a function that yields the faults that it finds. A fault is a text that names the job or the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.audit import SLACK, Audit
from scheduler.rounds.inputs import ANYWHERE, Held, NodeView, RoundInputs, RoundPlan


def check_plan(inputs: RoundInputs, plan: RoundPlan) -> list[str]:
    """Return the faults of the plan; empty if there are none."""
    audit = Audit(inputs, plan)
    return [fault for rule in RULES for fault in rule(audit)]


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


def _quotas_kept(audit: Audit) -> Iterator[str]:
    """Find quotas that are exceeded by more than jobs that have a right to keep their GPUs, and those beside them."""
    limited = audit.inputs.preemptions_max is not None
    for limit, (_, most) in enumerate(audit.inputs.limits):
        counted = audit.counted(limit)
        kept = {
            gpu
            for job, gpus in counted.items()
            if audit.stays(job) and (limited or audit.is_pinned(job))
            for gpu in gpus
        }
        newcomers = sorted(job for job, gpus in counted.items() if not kept.issuperset(gpus))
        if audit.gpus_in_use[limit] > most and newcomers:
            yield f"quota {limit} of {most} GPUs is exceeded by jobs {', '.join(newcomers)}"


def _budgets_kept(audit: Audit) -> Iterator[str]:
    for limit, terms in enumerate(audit.inputs.budgets):
        spending = audit.spending[limit]
        if spending > 0 and spending > terms.left + SLACK:
            yield f"budget {limit} with {terms.left:g} left is exceeded by a plan that takes {spending:g}"


def _job_quotas_kept(audit: Audit) -> Iterator[str]:
    """Find quotas on running jobs that are exceeded by more than jobs that have a right to keep their GPUs."""
    limited = audit.inputs.preemptions_max is not None
    for limit, most in enumerate(audit.inputs.job_limits):
        newcomers = [
            job
            for job in audit.running(limit)
            if not (audit.stays(job) and (limited or audit.is_pinned(job)))
        ]
        if audit.jobs_running[limit] > most and newcomers:
            yield f"quota {limit} of {most} running jobs is exceeded by jobs {', '.join(sorted(newcomers))}"


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
        if any(job in audit.placement_of for job in bundle.jobs) or audit.exceeds_quota(bundle):
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
    if audit.inputs.budgets and audit.exceeds_budget(bundle):
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
        if audit.exceeds_quota(bundle):
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
    _quotas_kept,
    _budgets_kept,
    _job_quotas_kept,
    _zero_shares_do_not_run,
    _reservations_are_due,
    _reservations_respected,
    _waiting_gangs_have_reservations,
    _skipped_are_gangs,
    _preemptions_limited,
    _idle_gpus_have_no_use,
)
