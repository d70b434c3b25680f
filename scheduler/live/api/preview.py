"""The preview of a job: why it would be refused, or where it could run and when it might start.

The job is added to a copy of the state, then checked and explained like a real one. The copy shares parts with the
real state; these are only read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.planning.admission import NO_PAST, would_wait_for
from scheduler.core.planning.unfinished import Unfinished
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.explain.scene import Column, Scene
from scheduler.explain.wording import listed, when
from scheduler.live.wire.job_view import stamp
from scheduler.model.cluster import NodeState, gpus_for
from scheduler.model.errors import InvalidSpec, LimitReached
from scheduler.model.jobs import Job, JobSpec, JobState

NODES_SHOWN = 8
PLACES_SHOWN = 16


def preview(
    state: SchedulerState,
    spec: JobSpec,
    now_s: float,
    past: Mapping[str, JobState] = NO_PAST,
    unfinished: Unfinished | None = None,
) -> pb.Preview:
    """Preview a job as if it were submitted now. The preview of an array is that of its first job.

    `unfinished`: the jobs that would be submitted together with it, before it; it is added to them.
    """
    try:
        blocked_by = would_wait_for(state, spec, past)
        (unfinished or Unfinished(state)).add(spec, max(len(spec.array), 1))
    except InvalidSpec as error:
        return _refused(error.field, error.problem)
    except LimitReached as error:
        return _refused(error.field, str(error))
    job = Job(
        id=str(state.next_job),
        spec=spec,
        submitted_s=now_s,
        order=state.next_order,
        blocked_by=set(blocked_by),
    )
    trial = copy.copy(state)
    trial.jobs = {**state.jobs, job.id: job}
    trial.active = {**state.active, job.id: job}
    explanation = explain(trial, job.id, now_s)
    scene = Scene(trial, job, now_s)
    wire = pb.Preview(accepted=True)
    for column in scene.columns:
        if len(column.bundle.jobs) == 1 and len(wire.places) < PLACES_SHOWN:
            wire.places.append(_place(scene, column))
    kinds = dict.fromkeys(place.worker_type for place in wire.places if place.gpus_fitting >= place.gpus)
    lines = [
        f"accepted; it could run on {listed(list(kinds))}"
        if kinds
        else "accepted, but nothing that is up now has room for it",
        explanation.text,
    ]
    if explanation.expected_start_s is not None:
        wire.expected_start.CopyFrom(stamp(explanation.expected_start_s))
        lines.append(
            f"expected start: {when(explanation.expected_start_s, now_s)} ({explanation.start_sure})"
        )
    wire.text = "\n".join(lines)
    return wire


def _refused(field: str, why: str) -> pb.Preview:
    return pb.Preview(refused_field=field, refused_why=why, text=f"refused: {field}: {why}")


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
