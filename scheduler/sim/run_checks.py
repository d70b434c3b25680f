"""Checks of a run before its trace is read: its numbers, its cluster, and options that exclude each other."""

from __future__ import annotations

from scheduler.core.planning.feasibility import check_types
from scheduler.model.bounds import Bound, check, readable
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings
from scheduler.sim.run import JOBS, KNOBS, NODE_CPUS, Run
from traces.errors import nearest
from traces.formats import is_foreign
from traces.throughputs import Throughputs

# The most nodes of a cluster. A simulation takes 15 s until so many nodes have joined.
NODES_MAX = 100_000
# The fields for events that an ideal run does not simulate.
OVER_TIME = ("mtbf_h", "failures_file", "capacity_file", "prices_file")


def check_cpus(run: Run, table: Throughputs) -> None:
    """Refuse CPUs that would change nothing, and too few of them."""
    if run.fixed_cpus and run.cpus_per_node is None:
        raise InvalidSpec("fixed_cpus", "belongs to --cpus-per-node, which is missing")
    if run.cpus_per_node is None:
        return
    if not table.restrict(run.cluster).cpu_rates:
        source = run.throughputs or "our own throughput table"
        lack, advice = "no rates by CPUs", "give a table with a column cpus_per_gpu by --throughputs"
        if table.cpu_rates:
            lack += f" for {', '.join(sorted(run.cluster))}"
            advice = "add lines with cpus_per_gpu for these types"
        raise InvalidSpec("cpus_per_node", f"would change nothing: {source} has {lack}; {advice}")
    if run.ideal:
        raise InvalidSpec("cpus_per_node", "cannot be combined with --ideal, which has no nodes")
    gpus_per_node = run.effective("gpus_per_node")
    for worker_type, gpus in run.cluster.items():
        gpus_of_last = gpus % gpus_per_node or gpus_per_node
        cpus = run.cpus_per_node * gpus_of_last / gpus_per_node
        if cpus < NODE_CPUS.least:
            last = f"the last {worker_type} node, which has {gpus_of_last} of {gpus_per_node} GPUs"
            advice = f"give {NODE_CPUS.least * gpus_per_node / gpus_of_last:g} or more"
            problem = f"is {run.cpus_per_node:g}, which leaves {cpus:g} CPUs to {last}; {advice}"
            raise InvalidSpec("cpus_per_node", problem)


def check_cluster(run: Run, table: Throughputs) -> None:
    """Refuse a cluster that is empty or too large, and worker types that the table or the cluster lacks."""
    if not run.cluster:
        raise InvalidSpec("cluster", "is empty; give GPUs by type, such as v100=8,k80=16")
    for worker_type in run.cluster:
        if worker_type not in table.worker_types:
            source = run.throughputs or "our own throughput table"
            advice = _advice(run, worker_type, table)
            raise InvalidSpec("cluster", f"{worker_type!r} is not in {source}; {advice}")
    gpus_per_node = run.effective("gpus_per_node")
    nodes = sum(-(-gpus // gpus_per_node) for gpus in run.cluster.values())
    if nodes > NODES_MAX:
        problem = f"are {nodes:,} nodes of {gpus_per_node} GPUs; at most {NODES_MAX:,} can be simulated"
        raise InvalidSpec("cluster", f"{problem}; give fewer, or larger ones with --gpus-per-node")
    for worker_type in run.prices:
        if worker_type not in run.cluster:
            advice = nearest(worker_type, run.cluster)
            raise InvalidSpec("prices", f"{worker_type!r} is not in the cluster; {advice}")


def check_tenants(run: Run, settings: Settings, table: Throughputs) -> None:
    """Refuse quotas on worker types that neither the cluster nor the throughput table has, as the service does."""
    for tenant in settings.tenants:
        try:
            check_types(tenant, {*run.cluster, *table.worker_types})
        except InvalidSpec as error:
            raise InvalidSpec("config", f"{run.config}: {error}") from None


def _advice(run: Run, worker_type: str, table: Throughputs) -> str:
    if run.trace and not run.throughputs and is_foreign(run.trace):
        return f"{run.trace} has job types of another system: give the table that belongs to it with --throughputs"
    return nearest(worker_type, table.worker_types)


def check_numbers(run: Run) -> None:
    """Refuse numbers out of bounds, and options that exclude each other."""
    for field, knob in KNOBS.items():
        value = getattr(run, field)
        if knob.bound is not None and value is not None:
            _check_bound(field, value, knob.bound)
    if run.measure is not None:
        first, end = run.measure
        if not 0 <= first < end:
            raise InvalidSpec("measure", f"is {first}:{end}, must be FIRST:END with FIRST < END")
        check("measure", end, JOBS)
    for field, file in (("cloud", "prices_file"), ("notice_s", "capacity_file")):
        if getattr(run, field) and not getattr(run, file):
            raise InvalidSpec(field, f"belongs to --{file.replace('_', '-')}, which is missing")
    if run.ideal and any(getattr(run, field) for field in OVER_TIME):
        raise InvalidSpec("ideal", "cannot be combined with failures, or with capacity or prices over time")


def _check_bound(field: str, value: float | dict[str, float], bound: Bound) -> None:
    if not isinstance(value, dict):
        check(field, value, bound)
        return
    for kind, number in value.items():
        if not bound.admits(number):
            raise InvalidSpec(field, f"{kind}={readable(number)}: must be {bound}")
