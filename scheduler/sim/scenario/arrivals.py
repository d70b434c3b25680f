"""Checks of jobs before they are simulated: each must arrive within YEARS_MAX, run somewhere, and end soon enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from scheduler.model.cluster import in_groups
from scheduler.model.errors import InvalidSpec
from traces.errors import BadRow
from traces.throughputs import Throughputs
from traces.trace import TraceJob

# The most years until the last arrival, and the most years that a job may take at its fastest.
YEARS_MAX = 10
YEAR_S = 365 * 86_400.0
# A file of jobs, and the line of each job in it.
Places = tuple[str, tuple[int, ...]]
NOWHERE: Places = ("", ())
# What decides the rates of a job: its type, `gpus`, `gpus_min`, `gpus_max`, `gpus_together` and `worker_types`.
Kind = tuple[str, int, int | None, int | None, int, tuple[str, ...]]


def can_end(
    cluster: Mapping[str, int],
    gpus_per_node: int,
    table: Throughputs,
    jobs: Iterable[TraceJob],
    places: Places = NOWHERE,
) -> Iterator[TraceJob]:
    """Yield the jobs unchanged. Refuse the first job that fails a check, with its place in the file."""
    fastest: dict[Kind, float] = {}
    for number, job in enumerate(jobs):
        kind = (job.job_type, job.gpus, job.gpus_min, job.gpus_max, job.gpus_together, job.worker_types)
        if job.arrival_s > YEARS_MAX * YEAR_S:
            late = f"job {job.id!r} arrives at {job.arrival_s:g} s, after more than {YEARS_MAX} years"
            raise _refusal(places, number, late, "arrivals are seconds from the start, not times of day")
        if job.steps is None:
            endless = f"job {job.id!r} has no number of steps, so its end is unknown"
            raise _refusal(places, number, endless, "add one")
        if kind not in fastest:
            fastest[kind] = fastest_rate(cluster, gpus_per_node, table, job)
            if not fastest[kind]:
                why = "too few GPUs of a type that it fits, or no rate in the throughput table"
                stuck = f"{_described(job)} cannot run anywhere on the cluster"
                raise _refusal(places, number, stuck, why, "cluster")
        years = job.steps / fastest[kind] / YEAR_S
        if years > YEARS_MAX:
            long = f"job {job.id!r} has {job.steps:g} steps, {years:.3g} years at its fastest on this cluster"
            raise _refusal(places, number, long, f"at most {YEARS_MAX} can be simulated")
        yield job


def fastest_rate(cluster: Mapping[str, int], gpus_per_node: int, table: Throughputs, job: TraceJob) -> float:
    """Return the job's greatest rate on this cluster, alone; 0 if it cannot run anywhere."""
    narrowest, widest, group = job.gpus_min or job.gpus, job.gpus_max or job.gpus, job.gpus_together
    widths = [w for w in table.widths(job.job_type) if narrowest <= w <= widest and w % group == 0]
    rates = []
    for worker_type, gpus in cluster.items():
        if job.worker_types and worker_type not in job.worker_types:
            continue
        # The last node may be smaller than the others.
        on_nodes = [gpus_per_node] * (gpus // gpus_per_node) + [gpus % gpus_per_node]
        for width in widths:
            granule = math.lcm(group, table.gpus_together(job.job_type, width, worker_type))
            if width <= in_groups(on_nodes, granule):
                rates.append(table.rate(job.job_type, width, worker_type))
    return max(rates, default=0.0)


def _described(job: TraceJob) -> str:
    narrowest, widest = job.gpus_min or job.gpus, job.gpus_max or job.gpus
    kinds = f" of {' or '.join(job.worker_types)}" if job.worker_types else ""
    width = f"{narrowest}" if narrowest == widest else f"{narrowest} to {widest}"
    groups = f", {job.gpus_together} on each node" if job.gpus_together > 1 else ""
    return f"job {job.id!r} ({job.job_type!r} on {width} GPUs{kinds}{groups})"


def _refusal(places: Places, number: int, message: str, hint: str, field: str = "workload") -> Exception:
    """Return the error for a job, with its file and line; without a file, with the option `field`."""
    file, lines = places
    if number < len(lines):
        return BadRow(message, hint=hint, file=file, line=lines[number])
    return InvalidSpec(field, f"{message}; {hint}")
