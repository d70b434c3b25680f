"""Nodes, allocation, rounds, rates and channels as users see them. Nothing here changes the state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.pair_estimates import estimates_of
from scheduler.core.planning.pairing import ESTIMATED, pair_rate, pair_rates
from scheduler.core.state import SchedulerState
from scheduler.explain.wording import span
from scheduler.live.node_views import GpuDetails, NodeDetails, NodeSource
from scheduler.live.observe.notify.outbox import Waiting
from scheduler.live.observe.notify.sender import Sender
from scheduler.live.wire.job_view import stamp
from scheduler.model import bounds
from scheduler.model.cluster import FAULTY
from scheduler.model.errors import InvalidSpec
from scheduler.model.lease import Bundle, Phase
from scheduler.model.throughput import RateKey

# How many rows one call may add.
RATES_MAX = 100_000
# How many columns of the allocation are read before other tasks have their turn.
SLICE = 2000
# How many jobs with idle GPUs the status names.
IDLE_MAX = 10
_NOTHING_SEEN = GpuDetails()


def node_view(state: SchedulerState, name: str, report: NodeDetails | None) -> pb.Node:
    """Return a node with the last report of its agent, if there is one."""
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
    if report is not None:
        wire.heard.CopyFrom(stamp(report.last_message_s))
        wire.agent_version, wire.driver_version = report.agent_version, report.driver_version
        wire.storage, wire.speed, wire.containment = report.storage, report.speed, report.containment
    for index, gpu in enumerate(node.every_gpu):
        gpu_report = _NOTHING_SEEN if report is None else report.gpus.get(index, _NOTHING_SEEN)
        broken = gpu_report.broken or ("it reported a fatal error" if index in node.broken else "")
        if index in node.withheld:
            broken = broken or gpu_report.withheld or "an ended job may have left processes on it"
        wire.gpus.add(
            index=index,
            name=gpu_report.name,
            uuid=gpu_report.uuid,
            memory_gb=gpu_report.memory_gb or spec.gpu_memory_gb or 0.0,
            memory_used_gb=gpu_report.memory_used_gb,
            temperature_c=gpu_report.temperature_c,
            broken=broken,
            withheld=index in node.withheld,
            jobs=[state.leases[lease].lease.job for lease in state.holders.get(gpu, ())],
        )
    return wire


def withheld_warnings(state: SchedulerState, nodes: NodeSource) -> list[str]:
    """Return a line for each GPU that is withheld because an ended job may have left processes on it."""
    return [
        f"GPU {name}:{gpu.index} is withheld: {gpu.broken}; end the processes that belong to the job; if none does, "
        f"`gavel resume {name}`"
        for name, node in sorted(state.nodes.items())
        if node.withheld
        for gpu in node_view(state, name, nodes.view(name)).gpus
        if gpu.withheld
    ]


def node_warnings(state: SchedulerState, now_s: float) -> list[str]:
    """Return a line for each node that is out of use because of a fault."""
    lines = []
    for name, node in sorted(state.nodes.items()):
        if node.state is FAULTY:
            outlook = "until its agent reports that it is well"
            if node.back_s is not None:
                outlook = f"and is tried again in {max(node.back_s - now_s, 0.0):.0f} s"
            lines.append(f"node {name} is out of use: {node.why}; it gets no jobs {outlook}")
    return lines


def idle_warnings(state: SchedulerState, now_s: float) -> list[str]:
    """Return a line for each job whose GPUs have been idle for long; if there are many, for the longest ones."""
    since_s = {
        holding.lease.id: began_s
        for holding in state.leases.values()
        if (began_s := holding.idle_began_s) is not None
    }
    lines = []
    for name in sorted(since_s, key=since_s.__getitem__)[:IDLE_MAX]:
        lease, bundle = state.leases[name].lease, state.leases[name].bundle
        user = state.jobs[lease.job].spec.user
        by = f" of {user}" if user else ""
        lines.append(
            f"job {lease.job}{by} leaves {bundle.gpus} × {bundle.worker_type} idle for {span(now_s - since_s[name])}"
        )
    if len(since_s) > IDLE_MAX:
        lines.append(f"{len(since_s) - IDLE_MAX} more jobs leave their GPUs idle")
    return lines


async def allocation_view(state: SchedulerState) -> pb.Allocation:
    """Return the shares in force, with the time due and the time received. Other tasks have turns in between."""
    fact, table = state.allocation, state.shares
    if fact is None:
        return pb.Allocation(policy=state.settings.policy)
    wire = pb.Allocation(
        number=fact.number,
        policy=fact.policy,
        failed=fact.failed,
        optimal=fact.optimal,
        notes=fact.notes,
        price_per_gpu=prices(state),
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


def prices(state: SchedulerState) -> dict[str, float]:
    """Return what one more GPU of each worker type would add to the objective, as far as it is known."""
    if state.allocation is None:
        return {}
    shares = state.allocation.shares
    pairs = zip(shares.worker_types, shares.price, strict=False)
    return {kind: price for kind, price in pairs if price is not None}


def _rate_of(state: SchedulerState, bundle: Bundle) -> float:
    """Return the steps per second of the bundle's first job; 0 if unknown."""
    spec, kind, gpus = state.jobs[bundle.jobs[0]].spec, bundle.worker_type, bundle.gpus
    if len(bundle.jobs) == 1:
        return rate_of(state, spec, kind, gpus)[0]
    partner = state.jobs[bundle.jobs[1]].spec.job_type
    rates = pair_rates(state, kind, spec.job_type, partner, gpus)
    return rates[0] if rates else 0.0


def round_view(state: SchedulerState) -> pb.Round:
    """Return the current round."""
    wire = pb.Round(number=state.round.number)
    if not state.round.number:
        return wire
    wire.starts.CopyFrom(stamp(state.round.starts_s))
    wire.ends.CopyFrom(stamp(state.round.ends_s))
    in_use: set[str] = set()
    for holding in state.leases.values():
        if holding.phase is Phase.STOPPING:
            continue
        lease, bundle = holding.lease, holding.bundle
        renewed = lease.round_number != state.round.number
        in_use.update(lease.gpus)
        wire.moved += not renewed
        wire.renewed += renewed
        wire.runs.add(
            job=lease.job,
            worker_type=bundle.worker_type,
            gpus=lease.gpus,
            with_job=next((job for job in bundle.jobs if job != lease.job), ""),
            renewed=renewed,
        )
    for node in state.usable_nodes():
        wire.idle_gpus.extend(gpu for gpu in node.gpu_ids if gpu not in in_use and gpu not in state.holders)
    return wire


def rates_of(state: SchedulerState, job_type: str) -> Iterator[pb.Rate]:
    """Yield the rates of the table, the measured ones, and estimates: of this job type, or of all if it is empty."""
    book, trust_s = state.rates, state.settings.trust_after_s
    for key, solo_rate in sorted(book.solo.items()):
        if job_type in ("", key[0]):
            yield _rate(RateKey(*key), solo_rate, "table", 0.0)
    for (kind, first, second, gpus), (rate, _) in sorted(book.pairs.items()):
        if job_type in ("", first):
            yield _rate(RateKey(first, gpus, kind, second), rate, "table", 0.0)
    for measured, sample in sorted(book.measured.items(), key=lambda item: item[0]):
        # A plan's rate is none of the job type at this width.
        if job_type in ("", measured.job_type) and not (measured.spread or measured.plan):
            yield _rate(measured, book.rate(measured, None, trust_s), "measured", sample.observed_s)
    widths = sorted({key[3] for key in book.pairs} | {key.gpus for key in book.measured if key.partner})
    for gpus in widths:
        for kind, first, second in estimates_of(book, state.settings, gpus).unknown():
            rates = pair_rate(state, kind, first, second, gpus) if job_type in ("", first) else None
            if rates is not None and rates.source == ESTIMATED:
                yield _rate(RateKey(first, gpus, kind, second), rates.first, ESTIMATED, 0.0, rates.first_sd)


def _rate(key: RateKey, rate: float, source: str, measured_s: float, sd: float = 0.0) -> pb.Rate:
    return pb.Rate(
        job_type=key.job_type,
        gpus=key.gpus,
        worker_type=key.worker_type,
        steps_per_s=rate,
        source=source,
        measured_s=measured_s,
        with_job_type=key.partner,
        sd_steps_per_s=sd,
    )


Solo = list[tuple[str, int, str, float]]
Pairs = list[tuple[str, str, str, int, float, float]]


def rate_rows(wires: Iterable[Any]) -> tuple[Solo, Pairs]:
    """Return rows for the throughput table. A pair takes two messages: the rate of each job beside the other."""
    rows = list(wires)
    if not rows:
        raise InvalidSpec("rates", "is empty")
    if len(rows) > RATES_MAX:
        raise InvalidSpec("rates", f"has {len(rows):,} rows, more than {RATES_MAX:,}")
    solo: Solo = []
    rates_beside: dict[tuple[str, int, str, str], float] = {}
    for index, row in enumerate(rows):
        for field in ("job_type", "worker_type"):
            bounds.check_name(f"rates[{index}].{field}", getattr(row, field))
        bounds.check(f"rates[{index}].gpus", row.gpus, bounds.GPUS)
        bounds.check(f"rates[{index}].steps_per_s", row.steps_per_s, bounds.TABLE_RATE)
        if row.with_job_type:
            rates_beside[row.job_type, row.gpus, row.worker_type, row.with_job_type] = row.steps_per_s
        else:
            solo.append((row.job_type, row.gpus, row.worker_type, row.steps_per_s))
    return solo, list(_pairs(rates_beside))


def _pairs(
    rates_beside: dict[tuple[str, int, str, str], float],
) -> Iterator[tuple[str, str, str, int, float, float]]:
    """Yield one row per pair; raise InvalidSpec if one of its two rates is missing."""
    for (first, gpus, kind, second), rate in rates_beside.items():
        other = rates_beside.get((second, gpus, kind, first))
        if other is None:
            raise InvalidSpec(
                "rates", f"has '{first}' beside '{second}' on {kind}, but not '{second}' beside '{first}'"
            )
        if first <= second:
            yield (kind, first, second, gpus, rate, other)


def channel_view(sender: Sender, waiting: Waiting) -> pb.Channel:
    """Describe a channel of notifications for operators."""
    channel, record = sender.channel, sender.record
    wire = pb.Channel(
        name=channel.name,
        for_jobs=channel.for_jobs,
        url=channel.origin,
        events=channel.events,
        is_signed=bool(channel.secret_file),
        waiting=waiting.events,
        counted=waiting.counted,
        error=record.error,
    )
    if record.succeeded_s is not None:
        wire.succeeded.CopyFrom(stamp(record.succeeded_s))
    if record.failed_s is not None:
        wire.failed.CopyFrom(stamp(record.failed_s))
    return wire
