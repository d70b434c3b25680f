"""What people ask for, between the protocol and the model. Absent is not zero: only what was given is taken.

Whether figures, names and lists make sense is checked by the model (`JobSpec.checked`); here it is whether they can be
read at all.
"""

from __future__ import annotations

from typing import Any

from protos.gavel.v1 import jobs_pb2
from scheduler.live.wire.launch import launch_from_wire, launch_to_wire
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Dependency, JobSpec, JobState

_When = jobs_pb2.Dependency
_WHEN = {
    _When.WHEN_UNSPECIFIED: "succeeded",
    _When.WHEN_SUCCEEDED: "succeeded",
    _When.WHEN_ENDED: "ended",
}
_WHEN_NUMBERS = {"succeeded": _When.WHEN_SUCCEEDED, "ended": _When.WHEN_ENDED}

STATE_NUMBERS: dict[JobState, Any] = {
    state: jobs_pb2.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState
}
STATES: dict[int, JobState] = {number: state for state, number in STATE_NUMBERS.items()}

_OPTIONAL = (
    *("gpus", "gpus_min", "gpus_max", "steps", "weight"),
    *("deadline_s", "earliest_start_s", "time_limit_s", "min_run_s"),
    *("cpus", "memory_gb", "gpu_memory_gb"),
    *("retries", "retries_node", "retries_preemption"),
    *("preemptible", "packable", "reports_steps", "restart_cost_s", "max_cost"),
)
_TEXTS = ("name", "job_type", "tenant", "user")
_LISTS = ("worker_types", "excluded_worker_types", "nodes")
_MAPS = ("labels", "rates")


def spec_from_wire(wire: jobs_pb2.JobSpec) -> JobSpec:
    """What the model makes of it. InvalidSpec names the field that cannot be read."""
    given: dict[str, Any] = {name: getattr(wire, name) for name in _OPTIONAL if wire.HasField(name)}
    given |= {name: text for name in _TEXTS if (text := getattr(wire, name))}
    given |= {name: tuple(entries) for name in _LISTS if (entries := getattr(wire, name))}
    given |= {name: dict(entries) for name in _MAPS if (entries := getattr(wire, name))}
    if wire.after:
        given["after"] = tuple([_dependency(at, one) for at, one in enumerate(wire.after)])
    if wire.array:
        given["array"] = tuple(wire.array)
    given["launch"] = launch_from_wire(wire.launch)
    return JobSpec(**given)


def spec_to_wire(spec: JobSpec, *, brief: bool = False, private: bool = False) -> jobs_pb2.JobSpec:
    """For listings. `brief`: without what takes space. `private`: without what concerns nobody else."""
    wire = jobs_pb2.JobSpec(
        name=spec.name,
        job_type=spec.job_type,
        tenant=spec.tenant,
        user=spec.user,
        worker_types=spec.worker_types,
        excluded_worker_types=spec.excluded_worker_types,
        nodes=spec.nodes,
        array=spec.array,
    )
    for name in _OPTIONAL:
        value = getattr(spec, name)
        if value is not None:
            setattr(wire, name, value)
    for dependency in spec.after:
        wire.after.add(job=dependency.job, when=_WHEN_NUMBERS[dependency.when])
    if not brief:
        wire.rates.update(spec.rates)
        wire.labels.update(spec.labels)
        if spec.launch and not private:
            wire.launch.CopyFrom(launch_to_wire(spec.launch))
    return wire


def _dependency(at: int, wire: jobs_pb2.Dependency) -> Dependency:
    when = _WHEN.get(wire.when)
    if when is None:
        raise InvalidSpec(f"after[{at}].when", f"is {wire.when}, which this scheduler does not know")
    return Dependency(wire.job, when)  # type: ignore[arg-type]
