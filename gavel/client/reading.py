"""From messages of the protocol to plain values, and from those to JSON.

One function reads every result: fields of a dataclass are fields of its message by name, and the field's type says how
to read it. A message that lacks a field, or a dataclass that asks for one that is not there, is found by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from gavel.client import results
from gavel.client.specs import JobSpec, spec_from_proto
from protos.gavel.v1 import cluster_pb2, jobs_pb2

R = TypeVar("R")

_STATES: dict[Any, tuple[str, Any]] = {
    results.JobState: ("JOB_STATE_", jobs_pb2.JobState),
    results.NodeState: ("NODE_STATE_", cluster_pb2.NodeState),
    results.Role: ("ROLE_", cluster_pb2.Role),
}


def read(kind: type[R], message: Any) -> R:
    """The message as one of `results`."""
    return kind(**{name: _value(message, name, wanted) for name, wanted in _fields(kind)})  # type: ignore[arg-type]


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((one.name, hints[one.name]) for one in fields(kind))


def _value(message: Message, name: str, wanted: Any) -> Any:
    value = getattr(message, name)
    if get_origin(wanted) in (UnionType, Union):  # one or None
        if not message.HasField(name):
            return None
        (wanted,) = (one for one in get_args(wanted) if one is not NoneType)
    if isinstance(value, Struct):
        return whole_numbers(MessageToDict(value))
    if get_origin(wanted) is tuple:
        return tuple(_one(part, get_args(wanted)[0]) for part in value)
    if get_origin(wanted) is not None:
        return dict(value)
    return _one(value, wanted)


def _one(value: Any, wanted: Any) -> Any:
    if wanted is datetime:
        return moment(value)
    if wanted is JobSpec:
        return spec_from_proto(value)
    if wanted in _STATES:
        prefix, numbers = _STATES[wanted]
        known = numbers.values()
        word = numbers.Name(value).removeprefix(prefix).lower() if value in known else ""
        return wanted(word) if word and word != "unspecified" else wanted.UNKNOWN
    return read(wanted, value) if isinstance(wanted, type) and is_dataclass(wanted) else value


def number_of(value: results.JobState | results.Role | str) -> Any:
    """The number that the protocol has for a state or a role."""
    for kind, (prefix, numbers) in _STATES.items():
        if isinstance(value, kind):
            return numbers.Value(f"{prefix}{value.name}")
    raise TypeError(f"{value!r} is no state and no role")


def moment(stamp: Timestamp) -> datetime:
    """As an aware datetime."""
    return datetime.fromtimestamp(stamp.seconds, UTC).replace(microsecond=stamp.nanos // 1000)


def stamp_of(at: datetime) -> Timestamp:
    """The same back; a time without a zone is one of this machine's."""
    stamp = Timestamp()
    stamp.FromDatetime(at.astimezone(UTC))
    return stamp


def whole_numbers(value: Any) -> Any:
    """A Struct has floats only: 3.0 becomes 3 again."""
    if isinstance(value, dict):
        return {key: whole_numbers(part) for key, part in sorted(value.items())}
    if isinstance(value, list):
        return [whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(value: Any) -> Any:
    """Any result as what JSON knows: times as ISO 8601 in UTC, what is not a number as null."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.name != "source"}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
