"""Measure the metrics of a large scheduler: counting its facts, setting its gauges, and a scrape.

    python -m benchmarks.metrics [--jobs 10000] [--nodes 1000] [--tenants 150]

One table: processor time of each step, and the share of a core that it takes at the rate at which it happens; series
and bytes of a scrape. Each job holds or waits for one GPU, and each node has eight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import product

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.messages import Shares
from scheduler.core.state import SchedulerState
from scheduler.live.job_feed import JobChanges
from scheduler.live.observe.metrics.catalogue import GPU_TIMES, Metrics
from scheduler.live.observe.metrics.exporter import GAUGES_S
from scheduler.live.observe.metrics.from_facts import FactCounters
from scheduler.live.observe.metrics.from_state import StateGauges
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import Bundle, Lease

TYPES = ("v100", "t4", "a100", "h100")
GPUS = 8
# How often Prometheus scrapes, and how long a round lasts.
SCRAPE_S, ROUND_S = 15.0, 360.0
REPEATS = 5
# How many different methods are called.
METHODS = 40


def story(jobs: int, nodes: int, tenants: int) -> list[list[f.Fact]]:
    """Return the records after which all GPUs are held, or all jobs run."""
    specs = [NodeSpec(name=f"n{i}", worker_type=TYPES[i % len(TYPES)], gpus=GPUS) for i in range(nodes)]
    names = [str(number + 1) for number in range(jobs)]
    places = [(spec, index) for spec in specs for index in range(GPUS)]
    types = [places[i % len(places)][0].worker_type for i in range(jobs)]
    share = min(1.0, len(places) / jobs)
    shares = Shares(
        jobs=tuple(names),
        worker_types=TYPES,
        first=list(range(jobs)),
        second=[-1] * jobs,
        worker_type=[TYPES.index(kind) for kind in types],
        gpus=[1] * jobs,
        share=[share] * jobs,
        price=[1.0] * len(TYPES),
    )
    granted = tuple(
        Lease(name, name, Bundle((name,), spec.worker_type, 1), 1, 1, (f"{spec.name}:{index}",), 1, ROUND_S)
        for name, (spec, index) in zip(names, places, strict=False)
    )
    return [
        [f.EpochStarted(epoch=1), *(f.NodeJoined(spec=spec) for spec in specs)],
        [
            f.JobSubmitted(job=name, spec=JobSpec(job_type="cnn", tenant=f"t{number % tenants}"))
            for number, name in enumerate(names)
        ],
        [f.AllocationAsked(number=1)],
        [f.AllocationAdopted(number=1, policy="las", shares=shares)],
        [f.RoundPlanned(number=1, starts_s=0.0, ends_s=ROUND_S, granted=granted)],
        [f.LeasesStarted(leases=tuple(lease.id for lease in granted))],
    ]


def least_s(work: Callable[[], object]) -> float:
    """Return the least processor time of several runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        began_s = time.process_time()
        work()
        times.append(time.process_time() - began_s)
    return min(times)


def note_calls_and_ends(metrics: Metrics, tenants: int) -> None:
    """Give the series that only long service brings: calls of METHODS, and ended leases of each tenant on each type."""
    for number in range(METHODS):
        metrics.calls.observe(f"Service/Method{number}", "ok", value=0.01)
    for number in range(tenants):
        tenant = metrics.tenants.name(f"t{number}")
        metrics.completion.observe(tenant, value=1000.0)
        for kind, part in product(TYPES, GPU_TIMES):
            metrics.gpu_seconds.add(kind, tenant, part)


def measured(jobs: int, nodes: int, tenants: int) -> Sequence[tuple[str, float, float]]:
    """Return what each step takes in seconds, and how often it happens; print the size of a scrape."""
    state, metrics = SchedulerState(), Metrics("0")
    counters = FactCounters(metrics, state)
    counting_s = 0.0
    for record in story(jobs, nodes, tenants):
        for fact in record:
            apply(state, 1.0, fact)
        began_s = time.process_time()
        counters.listen(1.0, record)
        counting_s += time.process_time() - began_s
    gauges = StateGauges(metrics, state, JobChanges(state).states)
    began_s = time.process_time()
    gauges.update(1.0)
    first_s = time.process_time() - began_s
    note_calls_and_ends(metrics, tenants)
    text = metrics.text()
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(f"{jobs:,} jobs, {nodes:,} nodes: {series:,} series, {len(text) / 1e3:,.0f} kB")
    return (
        ("count the facts of a round in which everything starts", counting_s, ROUND_S),
        ("set the gauges after an allocation or a round", first_s, ROUND_S),
        ("set the gauges otherwise", least_s(lambda: gauges.update(2.0)), GAUGES_S),
        ("make the text of a scrape", least_s(metrics.text), SCRAPE_S),
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=150)
    options = parser.parse_args()
    for step, took_s, every_s in measured(options.jobs, options.nodes, options.tenants):
        print(f"{step:56} {took_s * 1e3:8.1f} ms {took_s / every_s:8.3%} of a core")


if __name__ == "__main__":
    main()
