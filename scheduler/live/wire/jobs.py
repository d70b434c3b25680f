"""Convert a job's description between the protocol and the model, whose fields have the same names.

An absent value differs from zero.

The model checks figures, names and lists (`JobSpec.checked`), and `check_launch` checks whether a job can be started.
Here, only values that cannot be read are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protos.gavel.v1 import jobs_pb2
from protos.gavel.v1.plain import UnknownWord, message_of, plain
from scheduler.live.wire.launch import check_launch
from scheduler.model import bounds
from scheduler.model.changes import JobChanges
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.launch import Launch
from scheduler.model.plans import Plan

STATE_NUMBERS: dict[JobState, Any] = {
    state: jobs_pb2.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState
}
STATES: dict[int, JobState] = {number: state for state, number in STATE_NUMBERS.items()}

# The limits of a job that can be removed.
REMOVABLE = ("time_limit_s", "deadline_s", "max_cost")
# Agents older than containers would run the program of a job directly on the node. They refuse a `venv` that is no
# absolute path, and quote it in the log of the job. Newer agents ignore the `venv` of a container.
_REFUSED_BY_OLD_AGENTS = "this agent is too old for containers: upgrade it"
# Large fields, which lists omit.
_LARGE = ("rates", "labels", "launch", "plans", "plans_from")
_FIELDS = [
    field for field in jobs_pb2.JobSpec.DESCRIPTOR.fields if field.name not in (*_LARGE, "after", "notify")
]
# Fields whose zero differs from being absent.
_OPTIONAL = tuple(field.name for field in _FIELDS if field.has_presence)
_OTHERS = tuple(field.name for field in _FIELDS if not field.has_presence)


def spec_from_wire(wire: jobs_pb2.JobSpec) -> JobSpec:
    """Return the model of a job. Raise InvalidSpec, with the field, for a value that cannot be read."""
    try:
        spec = msgspec.convert({"launch": {}} | plain(wire), JobSpec)
    except UnknownWord as error:
        raise InvalidSpec(error.field, f"is {error.number}, which is unknown to this scheduler") from None
    if spec.launch is not None:
        check_launch(spec.launch)
    return spec


def spec_to_wire(spec: JobSpec, *, brief: bool = False, private: bool = False) -> jobs_pb2.JobSpec:
    """Return a job for users. `brief`: without large fields; `private`: without launch and plans."""
    values = {name: value for name in _OPTIONAL if (value := getattr(spec, name)) is not None}
    values |= {name: value for name in _OTHERS if (value := getattr(spec, name))}
    if spec.after:
        values["after"] = [msgspec.structs.asdict(dependency) for dependency in spec.after]
    if spec.notify:
        values["notify"] = [msgspec.structs.asdict(entry) for entry in spec.notify]
    if not brief:
        values |= {"rates": spec.rates, "labels": spec.labels}
        if spec.launch is not None and not private:
            values["launch"] = _plain_launch(spec.launch)
        if not private:
            values["plans"] = [msgspec.structs.asdict(plan) for plan in spec.plans]
            values["plans_from"] = spec.plans_from
    return message_of(jobs_pb2.JobSpec, values)


def changes_from_wire(wire: jobs_pb2.JobChanges, since_submission_s: float) -> JobChanges:
    """Return the changes of a job, whose deadline then counts from its submission, not from now."""
    values = plain(wire)
    for field in values.pop("remove", ()):
        if field not in REMOVABLE:
            raise InvalidSpec("remove", f"'{field}' cannot be removed; {', '.join(REMOVABLE)} can")
        if field in values:
            raise InvalidSpec(field, "is both set and removed")
        values[field] = None
    if "worker_types" in values:
        values["worker_types"] = values["worker_types"].get("names", ())
    if "plans" in values:
        values["plans"] = msgspec.convert(values["plans"].get("plans", ()), tuple[Plan, ...])
    if "gpus" in values:
        values = {"gpus_min": None, "gpus_max": None} | values
    elif "gpus_min" in values or "gpus_max" in values:
        raise InvalidSpec("gpus", "must be given with gpus_min and gpus_max")
    if values.get("deadline_s") is not None:
        bounds.check("deadline_s", values["deadline_s"], bounds.JOB["deadline_s"])
        values["deadline_s"] += since_submission_s
    return JobChanges(**values)


def launch_to_wire(launch: Launch | None) -> jobs_pb2.Launch:
    """Return a launch for agents, without fields that are unknown to this release."""
    values = {} if launch is None else _plain_launch(launch)
    if "container" in values:
        values.setdefault("venv", _REFUSED_BY_OLD_AGENTS)
    return message_of(jobs_pb2.Launch, values)


def _plain_launch(launch: Launch) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(launch)
    values.pop("unknown", None)
    return values
