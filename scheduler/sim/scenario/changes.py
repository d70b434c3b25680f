"""Changes of a simulated cluster while jobs run, all known before the run: failures, capacity, prices.

Rules: a capacity file moves the types that it names away from what the cluster starts with; nodes it asks for
beyond those are called TYPE-more-N. A node that is away neither fails nor is repaired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from scheduler.core.messages import Message, SetPrices
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.world import Event
from scheduler.sim.scenario.faults import CapacityStep, NodeEvent, capacity, failures, read_events, strike
from scheduler.sim.scenario.reclaims import vacations
from scheduler.sim.simulate import STORAGE, nodes
from traces.time_series import read_capacity, read_prices

Change = tuple[float, Callable[[Machines], Event]]
FAILURES_MAX = 1_000_000
HOUR_S = 3600.0


def changes_of(
    cluster: Mapping[str, int],
    gpus_per_node: int,
    *,
    seed: int = 0,
    until_s: float = 0.0,
    mtbf_h: float | None = None,
    repair_h: float = 1.0,
    failures_file: str = "",
    notice_s: float = 0.0,
    checkpoints_s: Collection[float] = (),
    prices_file: str = "",
    cloud: str | None = None,
    capacity_file: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> tuple[Change, ...]:
    """Return all changes in order of time; random failures happen until `until_s`.

    `notice_s`: how long before nodes of the capacity file leave the scheduler is warned; `checkpoints_s`: how long jobs
    need to save then. `cloud`: whose prices to take from a file that has several. `note` is called with what a file
    leaves open.
    """
    start = list(nodes(cluster, gpus_per_node))
    names = [spec.name for spec in start]
    pool, events = list(start), list[NodeEvent]()
    if capacity_file:
        pool, events = _capacity_events(cluster, start, gpus_per_node, capacity_file, notice_s)
    if failures_file:
        events += read_events(failures_file, (spec.name for spec in pool), note)
    if mtbf_h is not None:
        expected = len(names) * until_s / HOUR_S / mtbf_h
        if expected > FAILURES_MAX:
            problem = f"is {mtbf_h:g}: some {expected:,.0f} failures"
            raise InvalidSpec("mtbf_h", f"{problem}; give a longer time between them")
        events += failures(
            names, mtbf_s=mtbf_h * HOUR_S, mttr_s=repair_h * HOUR_S, until_s=until_s, seed=seed
        )
    spec_of = {spec.name: spec for spec in pool}
    possible = list(_possible(events))
    changes: list[Change] = [(event.t_s, _struck(event, spec_of)) for event in possible]
    changes += vacations(possible, checkpoints_s)
    if prices_file:
        changes += _price_changes(cluster, prices_file, cloud, note)
    return tuple(sorted(changes, key=lambda change: change[0]))


def horizon_s(last_arrival_s: float) -> float:
    """Return until when things happen: long after the last job is expected to have ended."""
    return 3 * (last_arrival_s if math.isfinite(last_arrival_s) else 0.0) + 2000 * HOUR_S


def _capacity_events(
    cluster: Mapping[str, int], start: list[NodeSpec], gpus_per_node: int, path: str, notice_s: float
) -> tuple[list[NodeSpec], list[NodeEvent]]:
    """Return all nodes that are ever present, and how they come and go after the start."""
    changes = read_capacity(path, cluster)
    pool = list(start)
    for kind in dict.fromkeys(change.worker_type for change in changes):
        most = max(change.gpus for change in changes if change.worker_type == kind)
        for number in range(-(-max(most - cluster[kind], 0) // gpus_per_node)):
            name = f"{kind}-more-{number}"
            pool.append(NodeSpec(name=name, worker_type=kind, gpus=gpus_per_node, storage=STORAGE))
    steps = [CapacityStep(change.t_s, change.worker_type, change.gpus, notice_s) for change in changes]
    named = {step.worker_type for step in steps if step.t_s == 0}
    steps += [CapacityStep(0.0, kind, gpus) for kind, gpus in cluster.items() if kind not in named]
    events = capacity(steps, pool)
    # The cluster is present from the start; only where the file differs from it is there an event.
    opening = {event.node for event in events if event.t_s == 0}
    present = {spec.name for spec in start}
    gone = [NodeEvent(0.0, spec.name, "leave") for spec in start if spec.name not in opening]
    return pool, gone + [event for event in events if event.t_s > 0 or event.node not in present]


def _possible(events: list[NodeEvent]) -> Iterator[NodeEvent]:
    """Yield events in order of time, without those of nodes that are away."""
    away: set[str] = set()
    for event in sorted(events, key=lambda event: event.t_s):
        if event.event == "leave":
            away.add(event.node)
        elif event.event == "join":
            away.discard(event.node)
        elif event.node in away:
            continue
        yield event


def _struck(event: NodeEvent, spec_of: Mapping[str, NodeSpec]) -> Callable[[Machines], Event]:
    def on(machines: Machines) -> Event:
        def happen(now_s: float) -> Iterable[Message]:
            return strike(machines, now_s, event, spec_of)

        return happen

    return on


def _price_changes(
    cluster: Mapping[str, int], path: str, cloud: str | None, note: Callable[[str], None]
) -> Iterator[Change]:
    changes = read_prices(path, cluster, cloud=cloud)
    missing = [kind for kind in cluster if kind not in {change.worker_type for change in changes}]
    if missing:
        note(f"{path}: has no price of {', '.join(missing)}, which keep theirs")
    for change in changes:
        yield change.t_s, _sent(SetPrices(price_per_gpu_hour={change.worker_type: change.price_per_gpu_hour}))


def _sent(message: Message) -> Callable[[Machines], Event]:
    return lambda machines: message
