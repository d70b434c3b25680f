"""Changes of a simulated cluster while jobs run, all known before the run: failures, capacity, prices.

Rules: a worker type keeps its initial number of GPUs until the capacity file changes it. Additional nodes are called
TYPE-more-N. A node that is away neither fails nor is repaired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial

from scheduler.core.messages import SetPrices
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec
from scheduler.sim.engine.world import Change
from scheduler.sim.run import HOUR_S, Run
from scheduler.sim.scenario.faults import NodeEvent, capacity, failures, read_events, strike
from scheduler.sim.scenario.reclaims import requests_to_stop
from scheduler.sim.simulate import STORAGE, nodes
from traces.time_series import CapacityChange, read_capacity, read_prices

FAILURES_MAX = 1_000_000


def changes_of(
    run: Run,
    *,
    until_s: float = 0.0,
    checkpoints_s: Collection[float] = (),
    note: Callable[[str], None] = lambda text: None,
) -> tuple[Change, ...]:
    """Return all changes of a run in order of time, with random failures until `until_s`.

    `checkpoints_s`: how long jobs take to save, so that they can be asked in time before a node leaves with notice.
    `note` is called with a text for each oddity of a file.
    """
    start = list(nodes(run.cluster, run.effective("gpus_per_node"), run.cpus_per_node))
    pool, events = list(start), list[NodeEvent]()
    if run.capacity_file:
        pool, events = _capacity_events(run, start)
    if run.failures_file:
        events += read_events(run.failures_file, (spec.name for spec in pool), note)
    if run.mtbf_h is not None:
        expected = len(start) * until_s / HOUR_S / run.mtbf_h
        if expected > FAILURES_MAX:
            problem = f"is {run.mtbf_h:g}: some {expected:,.0f} failures"
            raise InvalidSpec("mtbf_h", f"{problem}; give a longer time between them")
        names = [spec.name for spec in start]
        mtbf_s, mttr_s = run.mtbf_h * HOUR_S, run.repair_h * HOUR_S
        events += failures(names, mtbf_s=mtbf_s, mttr_s=mttr_s, until_s=until_s, seed=run.seed)
    spec_of = {spec.name: spec for spec in pool}
    events = list(_without_absent_nodes(events))
    changes: list[Change] = [(event.t_s, partial(strike, event=event, pool=spec_of)) for event in events]
    changes += requests_to_stop(events, checkpoints_s)
    if run.prices_file:
        changes += _price_changes(run, note)
    return tuple(sorted(changes, key=lambda change: change[0]))


def horizon_s(last_arrival_s: float) -> float:
    """Return the time at which random events end: long after the last job is expected to end."""
    return 3 * (last_arrival_s if math.isfinite(last_arrival_s) else 0.0) + 2000 * HOUR_S


def _capacity_events(run: Run, start: list[NodeSpec]) -> tuple[list[NodeSpec], list[NodeEvent]]:
    """Return all nodes that are ever present, and the events by which they come and go after the start."""
    cluster, gpus_per_node = run.cluster, run.effective("gpus_per_node")
    changes = read_capacity(run.capacity_file, cluster)
    pool = list(start)
    for kind in dict.fromkeys(change.worker_type for change in changes):
        most = max(change.gpus for change in changes if change.worker_type == kind)
        for number in range(-(-max(most - cluster[kind], 0) // gpus_per_node)):
            name = f"{kind}-more-{number}"
            more = NodeSpec(
                name=name, worker_type=kind, gpus=gpus_per_node, cpus=run.cpus_per_node, storage=STORAGE
            )
            pool.append(more)
    types_in_file = {change.worker_type for change in changes if change.t_s == 0}
    at_start = [
        CapacityChange(0.0, kind, gpus) for kind, gpus in cluster.items() if kind not in types_in_file
    ]
    events = capacity([*at_start, *changes], pool, run.notice_s)
    # The cluster is present from the start; only the file's differences from it are events.
    joining = {event.node for event in events if event.t_s == 0}
    present = {spec.name for spec in start}
    leaving = [NodeEvent(0.0, spec.name, "leave") for spec in start if spec.name not in joining]
    return pool, leaving + [event for event in events if event.t_s > 0 or event.node not in present]


def _without_absent_nodes(events: list[NodeEvent]) -> Iterator[NodeEvent]:
    """Yield the events in order of time, without failures and repairs of nodes that are away."""
    away: set[str] = set()
    for event in sorted(events, key=lambda event: event.t_s):
        if event.event == "leave":
            away.add(event.node)
        elif event.event == "join":
            away.discard(event.node)
        elif event.node in away:
            continue
        yield event


def _price_changes(run: Run, note: Callable[[str], None]) -> Iterator[Change]:
    changes = read_prices(run.prices_file, run.cluster, cloud=run.cloud or None)
    missing = [kind for kind in run.cluster if kind not in {change.worker_type for change in changes}]
    if missing:
        note(f"{run.prices_file}: has no prices of {', '.join(missing)}; these keep their initial prices")
    for change in changes:
        yield change.t_s, SetPrices(price_per_gpu_hour={change.worker_type: change.price_per_gpu_hour})
