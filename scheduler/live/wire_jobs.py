"""What people ask for, between the protocol and the model. Absent is not zero: only what was given is taken.

Whether the figures make sense is checked by the model (`JobSpec.checked`) and the core; here it is whether they can be
read at all, and whether names are names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protos.gavel.v1 import jobs_pb2
from scheduler.live.wire_launch import launch_from_wire, launch_to_wire
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Dependency, JobSpec, JobState

NAME_CHARS_MAX = 256
ENTRIES_MAX = 10_000  # of one list or map in a job
GPUS_MAX = 1_000_000

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
    for name in ("gpus", "gpus_min", "gpus_max"):
        if given.get(name, 0) > GPUS_MAX:
            raise InvalidSpec(name, f"is {given[name]}, which no cluster has")
    for name in _TEXTS:
        text = getattr(wire, name)
        if text:
            given[name] = _plain(name, text)
    for name in _LISTS:
        entries = getattr(wire, name)
        if entries:
            given[name] = tuple([_plain(f"{name}[{i}]", text) for i, text in enumerate(_few(name, entries))])
    for name in _MAPS:
        entries = getattr(wire, name)
        if entries:
            for key in _few(name, entries):
                _plain(name, key)
            given[name] = dict(entries)
    for key, value in wire.labels.items():
        _plain(f"labels.{key}", value, empty_is_fine=True)
    if wire.after:
        given["after"] = tuple([_dependency(i, one) for i, one in enumerate(_few("after", wire.after))])
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
    return Dependency(_plain(f"after[{at}].job", wire.job), when)  # type: ignore[arg-type]


def _few(field: str, entries: Any) -> Iterable[Any]:
    if len(entries) > ENTRIES_MAX:
        raise InvalidSpec(field, f"has {len(entries):,} entries, more than {ENTRIES_MAX:,}")
    return entries  # type: ignore[no-any-return]


def _plain(field: str, text: str, *, empty_is_fine: bool = False) -> str:
    """A name is short, and says what it looks like."""
    if not text and not empty_is_fine:
        raise InvalidSpec(field, "is empty")
    if len(text) > NAME_CHARS_MAX or not text.isprintable():
        raise InvalidSpec(
            field, f"must be at most {NAME_CHARS_MAX} characters, without line breaks or other control signs"
        )
    return text
