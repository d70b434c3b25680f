"""From messages of the protocol to plain values, and from those to JSON.

One function reads every result: fields of a dataclass are fields of its message by name, and the field's type says how
to read it. A message that lacks a field, or a dataclass that asks for one that is not there, is found by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from gavel.client import results
from gavel.client.jobs.spec import JobSpec, spec_from_proto
from protos.gavel.v1 import cluster_pb2, jobs_pb2

R = TypeVar("R")

_STATES: dict[Any, tuple[str, Any]] = {
    results.JobState: ("JOB_STATE_", jobs_pb2.JobState),
    results.NodeState: ("NODE_STATE_", cluster_pb2.NodeState),
    results.Role: ("ROLE_", cluster_pb2.Role),
}

_PLAIN = (str, int, float, bool, bytes)


def read(kind: type[R], message: Any) -> R:
    """The message as one of `results`."""
    return kind(**{name: get(message) for name, get in _getters(kind)})  # type: ignore[arg-type]


@cache
def _getters(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """How each field is read, worked out once for each kind: lists are long."""
    hints = get_type_hints(kind)
    return tuple((one.name, _getter(one.name, hints[one.name])) for one in fields(kind))


def _getter(name: str, wanted: Any) -> Callable[[Any], Any]:
    if get_origin(wanted) in (UnionType, Union):  # one or None
        (kind,) = (one for one in get_args(wanted) if one is not NoneType)
        one = _reader(kind)
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    if wanted in _PLAIN:
        return attrgetter(name)
    whole = _reader(wanted)
    return lambda message: whole(getattr(message, name))


def _reader(wanted: Any) -> Callable[[Any], Any]:
    """From a value of the protocol to one of this type."""
    if get_origin(wanted) is tuple:
        kind = get_args(wanted)[0]
        one = _reader(kind)
        return tuple if kind in _PLAIN else lambda values: tuple([one(value) for value in values])
    if get_origin(wanted) is not None:
        return _mapping
    if wanted is datetime:
        return moment
    if wanted is JobSpec:
        return spec_from_proto
    if wanted in _STATES:
        prefix, numbers = _STATES[wanted]
        words = {number: name.removeprefix(prefix).lower() for name, number in numbers.items()}
        states = {number: wanted(word) for number, word in words.items() if word != "unspecified"}
        return lambda number: states.get(number, wanted.UNKNOWN)
    return partial(read, wanted) if isinstance(wanted, type) and is_dataclass(wanted) else lambda value: value


def _mapping(value: Any) -> dict[str, Any]:
    return whole_numbers(MessageToDict(value)) if isinstance(value, Struct) else dict(value)


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
    return tuple(one.name for one in fields(kind) if one.name != "source")
