"""Jobs as messages of the protocol, for users. Nothing here changes the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from protos.gavel.v1 import jobs_pb2
from scheduler.core.planning.pairing import packed_rate
from scheduler.core.state import SchedulerState
from scheduler.explain import Explanation, render
from scheduler.live.access.roles import Caller
from scheduler.live.wire.jobs import STATE_NUMBERS, spec_to_wire
from scheduler.model.jobs import Job
from scheduler.model.launch import TerminalUse
from scheduler.model.lease import Holding, nodes_of
from scheduler.model.measured import whole_workers

# The beginning of the year 9999: programs can show it in every time zone.
LAST_S = 253_370_764_800.0


def stamp(at_s: float) -> Timestamp:
    """Return seconds since 1970 as a timestamp of the protocol, at most LAST_S."""
    at_s = min(at_s, LAST_S)
    seconds = int(at_s // 1)
    return Timestamp(seconds=seconds, nanos=int((at_s - seconds) * 1e9))


def seconds(timestamp: Timestamp) -> float:
    """Return a timestamp of the protocol as seconds since 1970."""
    return timestamp.seconds + timestamp.nanos * 1e-9


def job_view(
    state: SchedulerState,
    job: Job,
    caller: Caller,
    rates: Mapping[str, float],
    brief: bool = False,
    nodes: Sequence[str] = (),
    terminal: TerminalUse | None = None,
) -> jobs_pb2.Job:
    """Return a job as this caller may see it.

    `rates`: the last reported steps per second, by lease. `nodes`: the nodes of the job's attempts. `terminal`: how
    the terminal of an interactive job is used.
    """
    private = not caller.owns(job.spec.user)
    wire = jobs_pb2.Job(
        id=job.id,
        spec=spec_to_wire(job.spec, brief=brief, private=private),
        state=STATE_NUMBERS[job.state],
        why=job.why,
        submitted=stamp(job.submitted_s),
        steps_done=job.steps_done,
        steps_saved=job.steps_saved,
        run_s=job.run_s,
        attempt=job.attempt,
        failures=job.failures,
        node_failures=job.node_failures,
        preemptions=job.preemptions,
        cost=job.cost_usd,
        exit_code=job.last_exit,
        time_s=job.time_s,
        gpu_s=job.gpu_s,
        nodes=nodes,
        measured=_measured(state, job),
    )
    if job.started_s is not None:
        wire.started.CopyFrom(stamp(job.started_s))
    if job.ended_s is not None:
        wire.ended.CopyFrom(stamp(job.ended_s))
    if job.blocked_by:
        wire.blocked_by.extend(sorted(job.blocked_by, key=_id_numbers))
    if job.spec.array:
        wire.array_index = int(job.id.partition("_")[2])
    if job.last_lines and not (brief or private):
        wire.last_lines = job.last_lines
    holding = state.leases.get(job.lease or job.leaving or "")
    if holding is not None:
        wire.placement.CopyFrom(_placement(state, holding, rates))
        if terminal is not None and not private:
            wire.placement.terminal.CopyFrom(_terminal_use(terminal))
    return wire


def _measured(state: SchedulerState, job: Job) -> dict[str, float]:
    """Return what a job has measured, the loader workers that follow from it, and how much of its data is cached.

    Only data that the job itself has named counts: it may read other data than the last job of its type.
    """
    values = dict(state.measured.of(job.id))
    workers = state.measured.own_workers(job.id)
    if workers is not None:
        values["useful_workers"] = float(whole_workers(workers))
    holding = state.leases.get(job.lease or "")
    data = state.cached.jobs.get(job.id) if state.cached.nodes else None
    if holding is not None and data:
        nodes = nodes_of(holding.lease.gpus)
        values["cached_bytes"] = sum(state.cached.bytes_at(node, job.spec.user, data) for node in nodes)
        if len(nodes) > 1:
            # Several caches may hold the same part of the data, so that the sum is the most there can be.
            values["cached_nodes"] = float(len(nodes))
        if all(data.values()):
            values["data_bytes"] = sum(data.values())
    return values


def _terminal_use(use: TerminalUse) -> jobs_pb2.TerminalUse:
    wire = jobs_pb2.TerminalUse(attached=use.attached, keep_s=use.keep_s)
    if use.until_s is not None:
        wire.until.CopyFrom(stamp(use.until_s))
    return wire


def explanation_view(explanation: Explanation) -> jobs_pb2.Explanation:
    """Return an explanation as a message."""
    details = Struct()
    details.update(msgspec.to_builtins(explanation))
    wire = jobs_pb2.Explanation(
        job=explanation.job,
        state=STATE_NUMBERS[explanation.state],
        reason=explanation.reason.value,
        text=explanation.text,
        details=details,
        rendered=render(explanation),
    )
    if explanation.expected_start_s is not None:
        wire.expected_start.CopyFrom(stamp(explanation.expected_start_s))
    return wire


def _placement(state: SchedulerState, holding: Holding, rates: Mapping[str, float]) -> jobs_pb2.Placement:
    bundle, job = holding.bundle, holding.lease.job
    since_s = holding.granted_s if holding.started_s is None else holding.started_s
    idle_s = holding.idle_began_s
    beside = packed_rate(state, bundle, job)
    return jobs_pb2.Placement(
        worker_type=bundle.worker_type,
        gpus=holding.lease.gpus,
        with_job=next((other for other in bundle.jobs if other != job), ""),
        since=stamp(since_s),
        until=stamp(state.lease_end_s(holding)),
        phase=holding.phase.value,
        lease=holding.lease.id,
        rate=rates.get(holding.lease.id, 0.0),
        plan=bundle.label,
        idle_since=None if idle_s is None else stamp(idle_s),
        packed_rate=None
        if beside is None
        else jobs_pb2.PackedRate(steps_per_s=beside.rate, source=beside.source, sd_steps_per_s=beside.sd),
    )


def _id_numbers(job: str) -> tuple[int, int]:
    parent, _, index = job.partition("_")
    return int(parent), int(index or -1)
