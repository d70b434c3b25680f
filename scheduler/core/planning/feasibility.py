"""Check whether the nodes of a cluster could ever meet a job's needs; if not, name a field that must change.

Each need is checked alone first, and then together with the needs before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.planned_rates import is_struck_out, plans_left
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import Node, gpus_for, in_groups
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.quota import ALL_TYPES
from scheduler.model.settings import TenantSpec

# How many values of a label an error lists.
VALUES_SHOWN = 8
# Larger numbers are not rounded to hundredths.
HUNDREDTHS_BELOW = 1e12
Nodes = Sequence[Node]


def must_be_runnable(state: SchedulerState, spec: JobSpec, known_types: Collection[str] = ()) -> None:
    """Raise InvalidSpec for a job that can never run. A cluster without nodes accepts every job.

    `known_types`: worker types that the job has plans for, allows or excludes although they may have left the cluster.
    """
    if not state.nodes:
        return
    must_fit_somewhere(state, spec, known_types)
    if spec.plans:
        must_have_plan(state, spec, known_types)
    else:
        _must_have_rate(state, spec)


def _must_have_rate(state: SchedulerState, spec: JobSpec) -> None:
    """Raise InvalidSpec for a job whose rates are 0 on every worker type that it may use, at every width."""
    if any(spec.may_use(kind) and _runs(state, spec, kind) for kind in state.size_of_type):
        return
    types = sorted(state.size_of_type)
    allowed = [kind for kind in types if spec.may_use(kind)]
    where = listed(allowed)
    name = f"jobs of type '{spec.job_type}'" if spec.job_type else "this job"
    if spec.rates:
        rated = listed(sorted(spec.rates))
        raise InvalidSpec("rates", f"are given for {rated}, and this job may run on {where} only")
    other_types = [kind for kind in types if kind not in allowed and _runs(state, spec, kind)]
    if other_types:
        field = "worker_types" if spec.worker_types else "excluded_worker_types"
        raise InvalidSpec(
            field, f"{name} cannot run on {where} (the rates say 0); allow {listed(other_types)}"
        )
    widths = sorted(
        gpus
        for (kind, gpus, worker_type), rate in state.rates.solo.items()
        if kind == spec.job_type and worker_type in allowed and rate > 0
    )
    widths_asked = f"{spec.narrowest} to {spec.widest}" if spec.narrowest < spec.widest else str(spec.gpus)
    if widths:
        known = listed([str(gpus) for gpus in dict.fromkeys(widths)])
        raise InvalidSpec("gpus", f"{name} cannot run with {widths_asked} GPUs on {where}; ask for {known}")
    raise InvalidSpec(
        "job_type", f"{name} cannot run on {where}: the rates say 0; give rates above 0, or another job_type"
    )


def _runs(state: SchedulerState, spec: JobSpec, worker_type: str) -> bool:
    widths = spec.widths(state.size_of_type[worker_type])
    return any(rate_of(state, spec, worker_type, gpus)[0] > 0 for gpus in widths)


def runnable_widths(state: SchedulerState, spec: JobSpec, worker_type: str) -> list[int]:
    """Return the numbers of GPUs of a worker type with which the job could run if all its nodes were up and empty."""
    if not spec.may_use(worker_type):
        return []
    nodes = [node for node in state.nodes.values() if node.spec.worker_type == worker_type]
    on_nodes = [gpus_for(node, spec) for node in nodes]
    return [
        gpus
        for gpus in spec.widths_on(worker_type, sum(on_nodes))
        if in_groups(on_nodes, spec.granule(gpus, worker_type)) >= gpus
        and rate_of(state, spec, worker_type, gpus)[0] > 0
    ]


def must_fit_somewhere(state: SchedulerState, spec: JobSpec, known_types: Collection[str] = ()) -> None:
    """Raise InvalidSpec unless the nodes of one worker type, if they were empty, could meet the job's needs.

    `known_types`: worker types that the job may name although they have left the cluster.
    """
    if not (spec.is_picky or spec.is_grouped) and spec.narrowest <= max(state.size_of_type.values()):
        return
    nodes = list(state.nodes.values())
    _must_be_known(nodes, spec, known_types)
    if _fit(nodes, spec):
        return
    _must_have_gpus(nodes, spec)
    needs = {field: value for field in _FAULTS if (value := getattr(spec, field))}
    plain = JobSpec(
        gpus=spec.gpus,
        gpus_min=spec.gpus_min,
        gpus_max=spec.gpus_max,
        gpus_together=spec.granule(spec.narrowest, ""),
    )
    for field, value in needs.items():
        alone = replace(plain, **{field: value})
        if not _fit(nodes, alone):
            raise InvalidSpec(field, _FAULTS[field](nodes, alone))
    types = {field: getattr(spec, field) for field in ("worker_types", "excluded_worker_types")}
    together, names = replace(plain, **types), [field for field in types if types[field]]
    for field, value in needs.items():
        together = replace(together, **{field: value})
        if not _fit(nodes, together):
            others = listed([_WORDS.get(name, name) for name in names], "and")
            raise InvalidSpec(
                field, f"is impossible together with {others}: then there {_too_few(nodes, together)}"
            )
        names.append(field)


def must_have_plan(state: SchedulerState, spec: JobSpec, known_types: Collection[str] = ()) -> None:
    """Raise InvalidSpec unless the job can run by one of its plans on the GPUs of the cluster.

    A job may have plans for `known_types`, which were in the cluster before. With no others, it waits for their return.
    """
    sizes = state.size_of_type
    for index, plan in enumerate(spec.plans):
        if plan.worker_type not in sizes and plan.worker_type not in known_types:
            raise InvalidSpec(
                f"plans[{index}].worker_type",
                f"there is no '{plan.worker_type}' here; there is {', '.join(sorted(sizes))}",
            )
    left = plans_left(state, spec)
    if not left:
        out = [plan.label for plan in spec.plans if is_struck_out(state, spec, plan)]
        why = (
            f"{listed(out, 'and')} ran out of memory before"
            if out
            else "they are for other GPUs than it may use"
        )
        raise InvalidSpec("plans", f"the job can use none of them: {why}")
    left = [plan for plan in left if plan.worker_type in sizes]
    if not left:
        return
    if all(plan.gpus > sizes[plan.worker_type] for plan in left):
        least = min(left, key=lambda plan: plan.gpus - sizes[plan.worker_type])
        raise InvalidSpec(
            "plans",
            f"need more GPUs than there are: {least.label} needs {least.gpus} {least.worker_type}, and there are "
            f"{sizes[least.worker_type]}",
        )
    together = {plan: spec.granule(plan.gpus, plan.worker_type) for plan in left}
    room = {plan: _room(state, spec, plan.worker_type, together[plan]) for plan in left}
    if all(room[plan] < plan.gpus for plan in left):
        least = min(left, key=lambda plan: (together[plan], plan.gpus))
        groups = "" if together[least] == 1 else f", {together[least]} on one node each"
        names = state.left_out(spec)
        outdated = f"; upgrade agents that ignore plans, such as that of {names[0]}" if names else ""
        raise InvalidSpec(
            "plans",
            f"fit no nodes that the job may use: {least.label} needs {least.gpus} {least.worker_type}{groups}, and "
            f"there are at most {room[least]}{outdated}",
        )


def _room(state: SchedulerState, spec: JobSpec, worker_type: str, granule: int) -> int:
    """Return how many GPUs of a type the job could have if all nodes were empty, in groups on single nodes."""
    nodes = state.nodes.values()
    return in_groups(
        [gpus_for(node, spec) for node in nodes if node.spec.worker_type == worker_type], granule
    )


def _must_be_known(nodes: Nodes, spec: JobSpec, known_types: Collection[str]) -> None:
    types = {node.spec.worker_type for node in nodes}
    for field in ("worker_types", "excluded_worker_types"):
        unknown = sorted(set(getattr(spec, field)) - types - set(known_types))
        if unknown:
            raise InvalidSpec(field, f"there is no '{unknown[0]}' here; there is {', '.join(sorted(types))}")
    missing = set(spec.nodes) - {node.spec.name for node in nodes}
    if missing:
        raise InvalidSpec("nodes", f"there is no node '{min(missing)}'")


def _must_have_gpus(nodes: Nodes, spec: JobSpec) -> None:
    on_nodes: dict[str, list[int]] = {}
    for node in nodes:
        if spec.may_use(node.spec.worker_type):
            on_nodes.setdefault(node.spec.worker_type, []).append(node.spec.gpus)
    if not on_nodes:
        raise InvalidSpec("worker_types", "no worker type is left that the job may use")
    granule = spec.granule(spec.narrowest, "")
    kind = max(sorted(on_nodes), key=lambda kind: max(on_nodes[kind]))
    if max(on_nodes[kind]) < granule:
        field, why = "gpus_together", f"asks for {granule} GPUs on one node"
        if spec.is_interactive:
            field, why = "gpus", f"asks for {granule}; an interactive job runs on one node"
        raise InvalidSpec(field, f"{why}, and no node has more than {max(on_nodes[kind])} ({kind})")
    have = {kind: in_groups(gpus, granule) for kind, gpus in on_nodes.items()}
    kind = max(sorted(have), key=have.__getitem__)
    if have[kind] < spec.narrowest:
        groups = "" if granule == 1 else f", in groups of {granule} on one node each"
        raise InvalidSpec(
            "gpus",
            f"asks for {spec.narrowest} of one worker type{groups}, and there are at most {have[kind]} ({kind})",
        )


def _best_type(nodes: Nodes, spec: JobSpec) -> tuple[int, str]:
    """Return the largest number of GPUs of one worker type that the job could have, and that type."""
    on_nodes: dict[str, list[int]] = {}
    for node in nodes:
        on_nodes.setdefault(node.spec.worker_type, []).append(gpus_for(node, spec))
    most = {kind: in_groups(gpus, spec.granule(spec.narrowest, "")) for kind, gpus in on_nodes.items()}
    kind = max(sorted(most), key=most.__getitem__)
    return most[kind], kind


def _fit(nodes: Nodes, spec: JobSpec) -> bool:
    return _best_type(nodes, spec)[0] >= spec.narrowest


def _too_few(nodes: Nodes, spec: JobSpec) -> str:
    most, kind = _best_type(nodes, spec)
    if most == 0:
        return f"is no node left for the {spec.narrowest} GPU{'s' if spec.narrowest > 1 else ''}"
    return f"are at most {most} of the {spec.narrowest} GPUs of one worker type ({kind})"


def _largest(nodes: Nodes, spec: JobSpec, field: str, values: Iterable[float]) -> str:
    """Describe the largest of these values of the field with which the job would fit."""
    rising = sorted(set(values))
    # If the job fits with a value, it fits with every smaller one too.
    count = bisect_left(rising, True, key=lambda value: not _fit(nodes, replace(spec, **{field: value})))
    value = rising[count - 1] if count else 0.0
    kind = _best_type(nodes, replace(spec, **{field: value}))[1]
    unit = " GB" if field.endswith("_gb") else ""
    gpus = "1 GPU" if spec.narrowest == 1 else f"{spec.narrowest} GPUs of one worker type"
    requested, largest = (f"{_hundredths(x):,.12g}{unit}" for x in (getattr(spec, field), value))
    each = " on each" if field == "gpu_memory_gb" else ""
    return f"asks for {requested}, and a job with {gpus} can have at most {largest}{each} ({kind})"


def _hundredths(value: float) -> float:
    """Round a number down to hundredths."""
    return math.floor(value * 100 + 1e-6) / 100 if value < HUNDREDTHS_BELOW else value


def _no_gpu_memory(nodes: Nodes, spec: JobSpec) -> str:
    return _largest(nodes, spec, "gpu_memory_gb", (node.spec.gpu_memory_gb or 0.0 for node in nodes))


def _too_little(field: str) -> Callable[[Nodes, JobSpec], str]:
    """Return the function that describes a lack of this resource, which a job needs in proportion to its GPUs."""

    def fault(nodes: Nodes, spec: JobSpec) -> str:
        # For each node: its amount of the resource, and how many of the job's GPUs could be on it at most.
        shapes = {(getattr(node.spec, field), min(len(node.gpu_ids), spec.narrowest)) for node in nodes}
        # Slightly less than the quotient, because the quotient is rounded.
        values = [
            amount * spec.gpus / gpus * (1 - 1e-12)
            for amount, most in shapes
            if amount is not None
            for gpus in range(1, most + 1)
        ]
        return _largest(nodes, spec, field, values)

    return fault


def _no_labels(nodes: Nodes, spec: JobSpec) -> str:
    for key, value in spec.labels.items():
        values = sorted({node.spec.labels[key] for node in nodes if key in node.spec.labels})
        if not values:
            return f"no node has a label '{key}'"
        if value not in values:
            examples = listed([*values[:VALUES_SHOWN], *(["…"] if len(values) > VALUES_SHOWN else [])])
            return f"no node has {key}={value}; there is {examples}"
    if not any(node.fits(spec) for node in nodes):
        return "no node has all of these"
    return f"on nodes with these there {_too_few(nodes, spec)}"


def _no_nodes(nodes: Nodes, spec: JobSpec) -> str:
    return f"on these there {_too_few(nodes, spec)}"


_FAULTS: dict[str, Callable[[Nodes, JobSpec], str]] = {
    "nodes": _no_nodes,
    "labels": _no_labels,
    "gpu_memory_gb": _no_gpu_memory,
    "memory_gb": _too_little("memory_gb"),
    "cpus": _too_little("cpus"),
}
_WORDS = {
    "worker_types": "these worker types",
    "excluded_worker_types": "the worker types that are left",
    "nodes": "these nodes",
    "labels": "these labels",
    "gpu_memory_gb": "that much GPU memory",
    "memory_gb": "that much memory",
}


def check_types(tenant: TenantSpec, types: Collection[str]) -> None:
    """Raise InvalidSpec if a quota names a worker type that is not among those of the cluster and of its rates."""
    for place, quota in (("quota", tenant.quota), ("each_user", tenant.each_user)):
        unknown = sorted(quota.gpus.keys() - {*types, ALL_TYPES})
        if unknown and types:
            raise InvalidSpec(
                f"tenants.{tenant.name}.{place}.gpus",
                f"there is no '{unknown[0]}' here; there is {listed([*sorted(types), ALL_TYPES])}",
            )


def listed(words: Sequence[str], last: str = "or") -> str:
    """Join words with commas, the last two with `last`."""
    if len(words) < 2:
        return words[0] if words else "nothing"
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
