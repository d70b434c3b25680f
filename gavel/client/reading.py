"""Convert messages of the protocol to plain values, and plain values to JSON.

One function, `read`, reads every result: each field of a dataclass gets the value of the message's field of the same
name, converted to the dataclass's type. Tests compare the fields of dataclasses and messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from gavel.client.jobs.spec import After, AutoPlans, Container, JobSpec, Notify, Plan, Terminal
from protos.gavel.v1 import cluster_pb2, jobs_pb2
from protos.gavel.v1.plain import message_of, words_of
from protos.gavel.v1.plain import plain as fields_set

R = TypeVar("R")

# The enums of results, by the names of their classes.
_ENUMS: dict[str, EnumDescriptor] = {
    "JobState": jobs_pb2.JobState.DESCRIPTOR,
    "NodeState": cluster_pb2.NodeState.DESCRIPTOR,
    "Role": cluster_pb2.Role.DESCRIPTOR,
}

_PLAIN = (str, int, float, bool, bytes)

_LAUNCH_FIELDS = frozenset(jobs_pb2.Launch.DESCRIPTOR.fields_by_name) - {"upload"}
_JOB_FIELDS = frozenset(jobs_pb2.JobSpec.DESCRIPTOR.fields_by_name) - {"launch", "after", "notify"}
# Fields that jobs in a brief list do not have.
NOT_IN_LISTS = (*sorted(_LAUNCH_FIELDS), "upload", "package", "labels", "rates", "plans", "plans_from")


def read(kind: type[R], message: Any) -> R:
    """Return a message as a dataclass of `results`."""
    return kind(**{name: get(message) for name, get in _getters(kind)})  # type: ignore[arg-type]


@cache
def _getters(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return a reader for each field of a class; cached, because lists of jobs are long."""
    hints = get_type_hints(kind)
    return tuple((field.name, _getter(field.name, hints[field.name])) for field in fields(kind))


def _getter(name: str, kind: Any) -> Callable[[Any], Any]:
    if get_origin(kind) in (UnionType, Union):
        (inner,) = (part for part in get_args(kind) if part is not NoneType)
        convert = _reader(inner)
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if kind in _PLAIN:
        return attrgetter(name)
    convert = _reader(kind)
    return lambda message: convert(getattr(message, name))


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the conversion of a protocol value to a value of this type."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        convert = _reader(item)
        return tuple if item in _PLAIN else lambda values: tuple([convert(value) for value in values])
    if get_origin(kind) is not None:
        return _mapping
    if kind in _PLAIN:
        return lambda value: value
    if kind is datetime:
        return moment
    if kind is JobSpec:
        return spec_from_proto
    if issubclass(kind, Enum):
        states = {number: kind(word) for number, word in words_of(_ENUMS[kind.__name__]).items() if word}
        return lambda number: states.get(number, kind.UNKNOWN)
    return partial(read, kind)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Struct):
        return dict(value)
    from google.protobuf.json_format import MessageToDict

    table: dict[str, Any] = whole_numbers(MessageToDict(value))
    return table


def spec_to_proto(spec: JobSpec) -> jobs_pb2.JobSpec:
    """Return a message with the fields that were given. Raises ValueError or TypeError if a value does not fit."""
    values = {
        attribute.name: value
        for attribute in fields(spec)
        if (value := getattr(spec, attribute.name)) not in (None, "", (), {})
    }
    job = {name: value for name, value in values.items() if name in _JOB_FIELDS}
    launch = {name: value for name, value in values.items() if name in _LAUNCH_FIELDS}
    if spec.terminal is not None:
        launch["terminal"] = {
            name: value for name, value in asdict(spec.terminal).items() if value is not None
        }
    if spec.package:
        launch["upload"] = spec.package
    if spec.container:
        launch["container"] = asdict(spec.container)
    if spec.after:
        job["after"] = [{"job": after.job, "when": after.when} for after in spec.after]
    if spec.notify:
        job["notify"] = [asdict(entry) for entry in spec.notify]
    if isinstance(spec.plans, AutoPlans):
        raise TypeError("its plans are not computed: Client.with_plans does that")
    if spec.plans:
        job["plans"] = [asdict(plan) for plan in spec.plans]
        if spec.gpus is None:
            widths = [plan.gpus for plan in spec.plans]
            job |= {"gpus": min(widths), "gpus_min": min(widths), "gpus_max": max(widths)}
    return message_of(jobs_pb2.JobSpec, {**job, "launch": launch})


def spec_from_proto(wire: jobs_pb2.JobSpec) -> JobSpec:
    """Return a job from its message. An enum value that only newer releases define counts as not given."""
    job = fields_set(wire, unknown="")
    launch = job.pop("launch", {})
    package = launch.pop("upload", "")
    terminal = Terminal(**launch.pop("terminal")) if "terminal" in launch else None
    if "container" in launch:
        launch["container"] = Container(**{"image": "", **launch["container"]})
    after = tuple(
        After(entry.get("job", ""), entry.get("when") or "succeeded") for entry in job.pop("after", ())
    )
    notify = tuple(Notify(**{"to": "", **entry}) for entry in job.pop("notify", ()))
    blank = {"worker_type": "", "gpus": 0, "label": "", "rate": 0.0}
    plans = tuple(Plan(**{**blank, **entry}) for entry in job.pop("plans", ()))
    return JobSpec(
        **job, **launch, terminal=terminal, package=package, after=after, notify=notify, plans=plans
    )


def moment(stamp: Timestamp) -> datetime:
    """Return a timestamp as an aware datetime in UTC."""
    return datetime.fromtimestamp(stamp.seconds, UTC).replace(microsecond=stamp.nanos // 1000)


def stamp_of(moment: datetime) -> Timestamp:
    """Return a time as a timestamp; a time without a zone is in the zone of this machine."""
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def whole_numbers(value: Any) -> Any:
    """Turn whole floats back into integers, because a Struct holds floats only."""
    if isinstance(value, dict):
        return {key: whole_numbers(part) for key, part in sorted(value.items())}
    if isinstance(value, list):
        return [whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(value: Any) -> Any:
    """Return a result as JSON data: times as ISO 8601 in UTC, NaN and infinity as null."""
    kind = type(value)
    if kind in (str, int, bool, NoneType):
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind in (tuple, list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return {name: plain(getattr(value, name)) for name in _keys(kind)}  # type: ignore[arg-type]


@cache
def _keys(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "source")
