"""The kinds of values in a job's description: how each is read from a job file and from Python, and its JSON Schema.

As in a job file, a single name may replace a list in Python. The error about a value of a wrong type contains a remedy.
The scheduler checks the meaning of values.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from gavel.client.jobs import notify
from gavel.client.jobs import values as v
from gavel.client.jobs.auto_plans import SCHEDULES, checked, plan_value
from gavel.client.jobs.plan_file import plans_of, read_plans
from gavel.client.jobs.spec import FIELDS, After, AutoPlans, Container, Plan, Terminal
from protos.files.errors import BadInput
from protos.files.nodes import Node, Scalar
from protos.gavel.v1 import limits

Schema = dict[str, Any]
Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of values: its reader for job files, its check for values from Python, and its JSON Schema."""

    read: Callable[[Node], Any]
    check: Check
    schema: Schema


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"must be text, got {quoted(value)}" + _as_text(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput("is not Unicode text (half of a surrogate pair)") from None
    return value


def _path(value: Any) -> str:
    return _text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def _whole(minimum: int, maximum: int) -> Check:
    def read(value: Any) -> int:
        try:
            number = operator.index(value) if not isinstance(value, bool) else -1
        except TypeError:
            number = -1
        if not minimum <= number <= maximum:
            problem = f"must be a whole number from {minimum} to {maximum:,}, got {quoted(value)}"
            raise BadInput(problem + _as_number(value))
        return number

    return read


def _number(unit: str) -> Check:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            length_s = v.duration_s(value) if unit == "seconds" and isinstance(value, str) else None
            hint = f"; write {length_s:.15g}" if length_s is not None else _as_number(value)
            raise BadInput(f"must be a number{f' of {unit}' if unit else ''}, got {quoted(value)}{hint}")
        try:
            return float(value)
        except OverflowError:
            raise BadInput("is larger than any number that can be sent") from None

    return read


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"must be True or False, got {quoted(value)}")
    return value


def _listed(read: Check, entries: str, example: str) -> Check:
    def read_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise BadInput(f"must be a list of {entries} such as {example}, got {quoted(value)}")
        return v.each(read, value)

    return read_all


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    names: tuple[str, ...] = _listed(_text, "names", "['a100', 'h100']")(value)
    return tuple(sorted(names)) if isinstance(value, Set) else names


def _paths_inside(value: Any) -> tuple[str, ...]:
    listed = _listed(_text, "paths", "['results/**', '*.pt']")
    return v.each(v.inside, (value,) if isinstance(value, str) else listed(value))


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise BadInput(
            f"must be a list of words such as {value.split() or ['python', 'train.py']}, got {quoted(value)}; "
            "for a line of shell use script"
        )
    words: tuple[str, ...] = _listed(_path, "words", "['python', 'train.py']")(value)
    return words


def _after(value: Any) -> tuple[After, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    jobs: tuple[After, ...] = _listed(_one_after, "jobs", "['17']")(value if several else [value])
    return jobs


def _one_after(value: Any) -> After:
    if isinstance(value, After):
        job, when = value.job, value.when
    elif isinstance(value, str) or type(value) is int:
        job, when = str(value), None
    else:
        raise BadInput(f"must be the id of a job, or After(id, 'ended'), got {quoted(value)}")
    return v.one_after(Scalar(f"{_text(job)}:{when}" if when else _text(job), is_quoted=True))


def _terminal(value: Any) -> Terminal:
    if not isinstance(value, Terminal):
        raise BadInput(f"must be a Terminal, got {quoted(value)}")
    size = _whole(0, 10_000)
    return Terminal(
        tty=v.read_part("tty", _boolean, value.tty),
        rows=v.read_part("rows", size, value.rows),
        columns=v.read_part("columns", size, value.columns),
        keep_s=None if value.keep_s is None else v.read_part("keep_s", _number("seconds"), value.keep_s),
    )


def _container(value: Any) -> Container:
    if (
        isinstance(value, Mapping)
        and set(value) <= {"image", "runtime", "mounts", "env"}
        and "image" in value
    ):
        value = Container(**value)
    elif isinstance(value, str | os.PathLike):
        value = Container(_path(value))
    if not isinstance(value, Container):
        raise BadInput(f"must be the name or path of an image, or a Container, got {quoted(value)}")
    return Container(
        v.read_part("image", _path, value.image),
        v.read_part("runtime", _text, value.runtime),
        v.read_part("mounts", _names, value.mounts),
        v.read_part("env", _mapped(_text, "{'KEY': 'value'}"), value.env),
    )


def _plans(value: Any) -> tuple[Plan, ...] | AutoPlans:
    if isinstance(value, AutoPlans):
        return checked(value)
    return read_plans(value) if isinstance(value, str | os.PathLike) else plans_of(value) if value else ()


def _mapped(read: Check, example: str) -> Check:
    def read_all(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise BadInput(f"must be a mapping such as {example}, got {quoted(value)}")
        return {_text(key): v.read_part(str(key), read, entry) for key, entry in value.items()}

    return read_all


def _word(*words: str) -> Check:
    def read(value: Any) -> str:
        if value not in words:
            raise BadInput(f"must be {' or '.join(map(repr, words))}, got {quoted(value)}")
        return str(value)

    return read


def quoted(value: Any) -> str:
    """Return a value and its type, for a message."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:59] + '…'} ({type(value).__name__})"


def _as_text(value: Any) -> str:
    return f"; write '{value}'" if isinstance(value, int | float) else ""


def _as_number(value: Any) -> str:
    """Return a hint for a number that was written as text."""
    try:
        return f"; write {float(value):.15g}" if isinstance(value, str) and float(value) > 0 else ""
    except ValueError:
        return ""


_TEXT = {"type": "string"}
_LISTED = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}
_SCALARS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_ABOVE_0 = {"type": "number", "exclusiveMinimum": 0}
_WIDTH = {"type": "integer", "minimum": 1}
_GPUS = {
    "anyOf": [
        _WIDTH,
        {"type": "string", "pattern": "^[0-9]+ *- *[0-9]+$"},
        {
            "type": "object",
            "properties": {"min": _WIDTH, "max": _WIDTH},
            "required": ["min", "max"],
            "additionalProperties": False,
        },
    ]
}
_CONTAINER = {
    "anyOf": [
        _TEXT,
        {
            "type": "object",
            "properties": {
                "image": _TEXT,
                "runtime": {"enum": [*limits.CONTAINER_RUNTIMES]},
                "mounts": _LISTED,
                "env": _SCALARS,
            },
            "required": ["image"],
            "additionalProperties": False,
        },
    ]
}
_AUTO = {
    "type": "object",
    "properties": {
        "auto": {"anyOf": [_TEXT, {"type": "object", "additionalProperties": _WIDTH}]},
        "batch": _WIDTH,
        "max_tensor": _WIDTH,
        "schedule": {"enum": [*SCHEDULES]},
    },
    "required": ["auto", "batch"],
    "additionalProperties": False,
}
_ID = {"type": ["string", "integer"]}
_ONE_AFTER = {
    "anyOf": [
        _ID,
        {
            "type": "object",
            "properties": {"job": _ID, "when": {"enum": ["succeeded", "ended"]}},
            "required": ["job"],
            "additionalProperties": False,
        },
    ]
}


def _choice(*words: str) -> Kind:
    return Kind(v.choice(*words), _word(*words), {"enum": [*words]})


_VARIABLES = Kind(v.mapping(v.any_text, variables=True), _mapped(_text, "{'KEY': 'value'}"), _SCALARS)
# The kinds, by the names that docs/job-file.md uses.
KINDS = {
    "name": Kind(v.name_of, _text, {"type": ["string", "number"], "maxLength": limits.NAME_CHARS_MAX}),
    "path": Kind(v.name_of, _path, _TEXT),
    "plan file, model or none": Kind(plan_value, _plans, {"anyOf": [_TEXT, _AUTO]}),
    "image or container": Kind(v.container, _container, _CONTAINER),
    "lines of shell": Kind(v.lines, _text, _TEXT),
    "true or false": Kind(v.boolean, _boolean, {"type": "boolean"}),
    "whole number": Kind(
        v.whole(0, limits.COUNT_MAX), _whole(0, limits.COUNT_MAX), {"type": "integer", "minimum": 0}
    ),
    "whole number from 1": Kind(v.whole(1, limits.GPUS_MAX), _whole(1, limits.GPUS_MAX), _WIDTH),
    "number above 0": Kind(v.number("number above 0"), _number(""), _ABOVE_0),
    "number from 0 up": Kind(
        v.number("number from 0 up", zero=True), _number(""), {"type": "number", "minimum": 0}
    ),
    "size": Kind(
        v.size_gb,
        _number("GB"),
        {"type": "string", "pattern": r"^[0-9.]+([eE][-+]?[0-9]+)? *[kKMGTP]?i?B?$"},
    ),
    "duration": Kind(v.duration, _number("seconds"), _TEXT),
    "duration or time": Kind(v.instant, _number("seconds"), _TEXT),
    "number or range": Kind(v.gpus, _whole(1, limits.GPUS_MAX), _GPUS),
    "indices": Kind(
        v.array,
        _listed(_whole(0, limits.INDEX_MAX), "whole numbers", "range(10)"),
        {"anyOf": [_ID, {"type": "array", "items": {"type": "integer", "minimum": 0}}]},
    ),
    "list of arguments": Kind(
        v.command,
        _command,
        {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean"]}},
    ),
    "name or list of names": Kind(v.names, _names, _LISTED),
    "path or list of paths": Kind(v.paths_inside, _paths_inside, _LISTED),
    "mapping of names to text": Kind(v.mapping(v.any_text), _mapped(_text, "{'KEY': 'value'}"), _SCALARS),
    "mapping of variables to text": _VARIABLES,
    "mapping of variables to secrets": _VARIABLES,
    "mapping of worker types to numbers": Kind(
        v.mapping(v.number("number above 0")),
        _mapped(_number("steps per second"), "{'a100': 12.5}"),
        {"type": "object", "additionalProperties": _ABOVE_0},
    ),
    "per_gpu or per_node": _choice("per_gpu", "per_node"),
    "per_job or per_attempt": _choice("per_job", "per_attempt"),
    "channels": Kind(notify.notifications, notify.checked, notify.SCHEMA),
    "jobs": Kind(v.after, _after, {"anyOf": [*_ONE_AFTER["anyOf"], {"type": "array", "items": _ONE_AFTER}]}),
}
# The same by the field of JobSpec.
FIELD_KINDS = {field.target: KINDS[field.kind] for field in FIELDS}
FIELD_KINDS["terminal"] = replace(KINDS["name"], check=_terminal)
FIELD_KINDS |= {"gpus_min": FIELD_KINDS["gpus"], "gpus_max": FIELD_KINDS["gpus"]}
FIELD_KINDS |= dict.fromkeys(("package", "plans_from"), KINDS["name"])
