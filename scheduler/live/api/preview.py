"""What would become of a job that has not been submitted: refused and why, where it could run, when it might start.

The same checks and the same explanation as for a real job, on a copy of the state in which it is the newest one. What
is shared with the real state is only read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.on_jobs import NO_PAST, would_wait_for
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.explain.scene import Column, Scene
from scheduler.explain.wording import listed, when
from scheduler.live.wire.job_view import stamp
from scheduler.model.cluster import NodeState, gpus_for
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Job, JobSpec, JobState

NODES_SHOWN = 8
PLACES_SHOWN = 16


def preview(
    state: SchedulerState, spec: JobSpec, now_s: float, past: Mapping[str, JobState] = NO_PAST
) -> pb.Preview:
    """What would become of it if it were submitted now. An array is shown by its first job."""
    try:
        blocked_by = would_wait_for(state, spec, past)
    except InvalidSpec as error:
        return pb.Preview(
            refused_field=error.field,
            refused_why=error.problem,
            text=f"refused: {error.field}: {error.problem}",
        )
    job = Job(
        id=str(state.next_job),
        spec=spec,
        submitted_s=now_s,
        order=state.next_order,
        blocked_by=set(blocked_by),
    )
    there = copy.copy(state)
    there.jobs = {**state.jobs, job.id: job}
    there.active = {**state.active, job.id: job}
    said = explain(there, job.id, now_s)
    scene = Scene(there, job, now_s)
    wire = pb.Preview(accepted=True)
    for column in scene.columns:
        if len(column.bundle.jobs) == 1 and not column.bundle.label and len(wire.places) < PLACES_SHOWN:
            wire.places.append(_place(scene, column))
    kinds = dict.fromkeys(place.worker_type for place in wire.places if place.gpus_fitting >= place.gpus)
    lines = [
        f"accepted; it could run on {listed(list(kinds))}"
        if kinds
        else "accepted, but nothing that is up now has room for it",
        said.text,
    ]
    if said.expected_start_s is not None:
        wire.expected_start.CopyFrom(stamp(said.expected_start_s))
        lines.append(f"expected start: {when(said.expected_start_s, now_s)} ({said.start_sure})")
    wire.text = "\n".join(lines)
    return wire


def _place(scene: Scene, column: Column) -> pb.Preview.Place:
    kind, state = column.bundle.worker_type, scene.state
    pool = scene.pools.get(kind)
    fitting = [
        name
        for name, node in sorted(state.nodes.items())
        if node.state == NodeState.UP and node.spec.worker_type == kind and gpus_for(node, scene.job.spec)
    ]
    return pb.Preview.Place(
        worker_type=kind,
        gpus=column.bundle.gpus,
        gpus_fitting=0 if pool is None else pool.fitting,
        gpus_free=0 if pool is None else pool.room,
        rate=column.rate,
        rate_guessed=column.guessed,
        nodes=fitting[:NODES_SHOWN],
    )
