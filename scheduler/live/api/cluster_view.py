"""Nodes, allocation, rounds and rates as people see them. Reads the state, changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.pairing import pair_rates
from scheduler.core.state import SchedulerState
from scheduler.live.node_views import GpuSeen, NodeSeen, NodeSource
from scheduler.live.wire.job_view import stamp
from scheduler.model import bounds
from scheduler.model.cluster import FAULTY
from scheduler.model.errors import InvalidSpec
from scheduler.model.lease import Bundle, Phase
from scheduler.model.throughput import RateKey

RATES_MAX = 100_000  # rows of one call
SLICE = 2000  # columns
_NOTHING_SEEN = GpuSeen()


def node_view(state: SchedulerState, name: str, seen: NodeSeen | None) -> pb.Node:
    """A node, and what its agent says of it."""
    node = state.node(name)
    spec = node.spec
    wire = pb.Node(
        name=name,
        worker_type=spec.worker_type,
        state=f"NODE_STATE_{node.state.name}",
        why=node.why,
        since=stamp(node.since_s),
        labels=spec.labels,
        cpus=spec.cpus or 0.0,
        memory_gb=spec.memory_gb or 0.0,
        drained=node.drained,
    )
    if node.state is FAULTY and node.back_s is not None:
        wire.back.CopyFrom(stamp(node.back_s))
    if seen is not None:
        wire.heard.CopyFrom(stamp(seen.heard_s))
        wire.agent_version, wire.driver_version = seen.agent_version, seen.driver_version
        wire.storage, wire.speed, wire.containment = seen.storage, seen.speed, seen.containment
    for index, gpu in enumerate(node.every_gpu):
        said = _NOTHING_SEEN if seen is None else seen.gpus.get(index, _NOTHING_SEEN)
        broken = said.broken or ("it reported a fatal error" if index in node.broken else "")
        if index in node.withheld:
            broken = broken or said.withheld or "an ended job may have left processes on it"
        wire.gpus.add(
            index=index,
            name=said.name,
            uuid=said.uuid,
            memory_gb=said.memory_gb or spec.gpu_memory_gb or 0.0,
            memory_used_gb=said.memory_used_gb,
            temperature_c=said.temperature_c,
            broken=broken,
            withheld=index in node.withheld,
            jobs=[state.leases[lease].lease.job for lease in state.holders.get(gpu, ())],
        )
    return wire


def withheld_warnings(state: SchedulerState, nodes: NodeSource) -> list[str]:
    """The GPUs that wait for what an ended job may have left on them."""
    return [
        f"GPU {name}:{gpu.index} is withheld: {gpu.broken}; end those processes that are of the job, or, if none is,"
        f" `gavel resume {name}`"
        for name, node in sorted(state.nodes.items())
        if node.withheld
        for gpu in node_view(state, name, nodes.view(name)).gpus
        if gpu.withheld
    ]


def node_warnings(state: SchedulerState, now_s: float) -> list[str]:
    """A line for each node that is out of use for a fault."""
    lines = []
    for name, node in sorted(state.nodes.items()):
        if node.state is FAULTY:
            again = "until its agent reports that it is well"
            if node.back_s is not None:
                again = f"and is tried again in {max(node.back_s - now_s, 0.0):.0f} s"
            lines.append(f"node {name} is out of use: {node.why}; it gets no jobs {again}")
    return lines


async def allocation_view(state: SchedulerState) -> pb.Allocation:
    """The shares in force, with the time that each was due and got. Others have their turn in between."""
    fact, table = state.allocation, state.shares
    if fact is None:
        return pb.Allocation(policy=state.settings.policy)
    wire = pb.Allocation(
        number=fact.number,
        policy=fact.policy,
        failed=fact.failed,
        optimal=fact.optimal,
        notes=fact.notes,
        price_per_gpu={
            kind: price
            for kind, price in zip(fact.shares.worker_types, fact.shares.price, strict=False)
            if price is not None
        },
    )
    if state.adopted_s > 0:
        wire.adopted.CopyFrom(stamp(state.adopted_s))
    bundles = list(table.bundles)
    columns = (table.share.tolist(), table.entitled_s.tolist(), table.received_s.tolist())
    for row, (bundle, share, entitled_s, received_s) in enumerate(zip(bundles, *columns, strict=True)):
        if row % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        if share > 0 or received_s > 0:
            wire.shares.add(
                jobs=bundle.jobs,
                worker_type=bundle.worker_type,
                gpus=bundle.gpus,
                label=bundle.label,
                share=share,
                entitled_s=entitled_s,
                received_s=received_s,
                rate=_rate_of(state, bundle),
            )
    return wire


def _rate_of(state: SchedulerState, bundle: Bundle) -> float:
    """Steps per second of the first job, as far as it is known."""
    spec, kind, gpus = state.jobs[bundle.jobs[0]].spec, bundle.worker_type, bundle.gpus
    if len(bundle.jobs) == 1:
        return rate_of(state, spec, kind, gpus, bundle.label == "unconsolidated")[0]
    partner = state.jobs[bundle.jobs[1]].spec.job_type
    rates = pair_rates(state, kind, spec.job_type, partner, gpus)
    return rates[0] if rates else 0.0


def round_view(state: SchedulerState) -> pb.Round:
    """The round that runs, as it is now."""
    wire = pb.Round(number=state.round.number)
    if not state.round.number:
        return wire
    wire.starts.CopyFrom(stamp(state.round.starts_s))
    wire.ends.CopyFrom(stamp(state.round.ends_s))
    taken: set[str] = set()
    for holding in state.leases.values():
        if holding.phase is Phase.STOPPING:
            continue
        lease, bundle = holding.lease, holding.bundle
        renewed = lease.round_number != state.round.number
        taken.update(lease.gpus)
        wire.moved += not renewed
        wire.renewed += renewed
        wire.runs.add(
            job=lease.job,
            worker_type=bundle.worker_type,
            gpus=lease.gpus,
            with_job=next((one for one in bundle.jobs if one != lease.job), ""),
            renewed=renewed,
        )
    for node in state.usable_nodes():
        wire.idle_gpus.extend(gpu for gpu in node.gpu_ids if gpu not in taken and gpu not in state.holders)
    return wire


def rates_of(state: SchedulerState, job_type: str) -> Iterator[pb.Rate]:
    """What the table says and what was measured; of one job type, or of all."""
    book, trust_s = state.rates, state.settings.trust_after_s
    for key, told in sorted(book.solo.items()):
        if job_type in ("", key[0]):
            yield _rate(RateKey(*key), told, "table", 0.0)
    for (kind, first, second, gpus), (rate, _) in sorted(book.pairs.items()):
        if job_type in ("", first):
            yield _rate(RateKey(first, gpus, kind, second), rate, "table", 0.0)
    for known, seen in sorted(book.measured.items(), key=lambda item: item[0]):
        if job_type in ("", known.job_type) and not known.spread:
            yield _rate(known, book.rate(known, None, trust_s), "measured", seen.observed_s)


def _rate(key: RateKey, rate: float, source: str, measured_s: float) -> pb.Rate:
    return pb.Rate(
        job_type=key.job_type,
        gpus=key.gpus,
        worker_type=key.worker_type,
        steps_per_s=rate,
        source=source,
        measured_s=measured_s,
        with_job_type=key.partner,
    )


Solo = list[tuple[str, int, str, float]]
Pairs = list[tuple[str, str, str, int, float, float]]


def rate_rows(wire: Iterable[Any]) -> tuple[Solo, Pairs]:
    """Rows for the table. A pair takes two: what each does beside the other."""
    rows = list(wire)
    if not rows:
        raise InvalidSpec("rates", "is empty")
    if len(rows) > RATES_MAX:
        raise InvalidSpec("rates", f"has {len(rows):,} rows, more than {RATES_MAX:,}")
    solo: Solo = []
    beside: dict[tuple[str, int, str, str], float] = {}
    for at, row in enumerate(rows):
        for field in ("job_type", "worker_type"):
            bounds.check_name(f"rates[{at}].{field}", getattr(row, field))
        bounds.check(f"rates[{at}].gpus", row.gpus, bounds.GPUS)
        bounds.check(f"rates[{at}].steps_per_s", row.steps_per_s, bounds.TABLE_RATE)
        if row.with_job_type:
            beside[row.job_type, row.gpus, row.worker_type, row.with_job_type] = row.steps_per_s
        else:
            solo.append((row.job_type, row.gpus, row.worker_type, row.steps_per_s))
    return solo, list(_pairs(beside))


def _pairs(
    beside: dict[tuple[str, int, str, str], float],
) -> Iterator[tuple[str, str, str, int, float, float]]:
    for (first, gpus, kind, second), rate in beside.items():
        other = beside.get((second, gpus, kind, first))
        if other is None:
            raise InvalidSpec(
                "rates", f"has '{first}' beside '{second}' on {kind}, and not what '{second}' does then"
            )
        if first <= second:
            yield (kind, first, second, gpus, rate, other)
