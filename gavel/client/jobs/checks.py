"""A JobSpec that a program made, before it is sent: types that Python lets pass, and what to write instead.

What a job file takes for a list, a name alone, is taken here too. What values mean is checked by the scheduler.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from gavel.client.errors import InvalidJob
from gavel.client.jobs import values as v
from gavel.client.jobs.after import AFTER, After
from gavel.client.jobs.errors import objection
from gavel.client.jobs.spec import FIELDS, Field, JobSpec
from gavel.client.jobs.yaml import Wrong
from protos.files.yaml import Scalar
from protos.gavel.v1 import limits

Read = Callable[[Any], Any]


class _Unfit(Exception):
    """A value does not fit its field: the problem, and `at`, its place in the field."""

    def __init__(self, problem: str, at: str = "") -> None:
        super().__init__(problem)
        self.problem, self.at = problem, at


def checked(spec: Any, many: str = "") -> JobSpec:
    """The same with lists as tuples and paths as text. InvalidJob names the first field that is of another kind.

    `many`: which of several it is. What was read from a job file has been checked there.
    """
    if not isinstance(spec, JobSpec):
        hint = "; say JobSpec(**job)" if isinstance(spec, Mapping) else ""
        raise InvalidJob(
            f"must be a JobSpec, several, or the name of a job file, got {_quoted(spec)}{hint}", field="jobs"
        )
    if spec.source is not None:
        return spec
    changed = {}
    for name, read in _READERS.items():
        value = getattr(spec, name)
        if value is None or value == "":
            continue
        try:
            changed[name] = read(value)
        except _Unfit as unfit:
            raise objection(spec, f"{name}{unfit.at}", unfit.problem, many=many) from None
    return replace(spec, **changed)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"must be text, got {_quoted(value)}" + _as_text(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Unfit("is not Unicode text (half of a surrogate pair)") from None
    return value


def _path(value: Any) -> str:
    return _text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def _whole(least: int, most: int) -> Read:
    def read(value: Any) -> int:
        try:
            number = operator.index(value) if not isinstance(value, bool) else -1
        except TypeError:
            number = -1
        if not least <= number <= most:
            wanted = f"must be a whole number from {least} to {most:,}"
            raise _Unfit(f"{wanted}, got {_quoted(value)}" + _as_number(value))
        return number

    return read


def _number(unit: str) -> Read:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            length_s = v.duration_s(value) if unit == "seconds" and isinstance(value, str) else None
            hint = f"; say {length_s:.15g}" if length_s is not None else _as_number(value)
            raise _Unfit(f"must be a number{f' of {unit}' if unit else ''}, got {_quoted(value)}{hint}")
        try:
            return float(value)
        except OverflowError:
            raise _Unfit("is larger than any number that can be sent") from None

    return read


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unfit(f"must be True or False, got {_quoted(value)}")
    return value


def _listed(read: Read, entries: str, example: str) -> Read:
    def read_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _Unfit(f"must be a list of {entries} such as {example}, got {_quoted(value)}")
        return tuple([_within(f"[{at}]", read, entry) for at, entry in enumerate(value)])

    return read_all


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    names: tuple[str, ...] = _listed(_text, "names", "['a100', 'h100']")(value)
    return tuple(sorted(names)) if isinstance(value, Set) else names


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise _Unfit(
            f"must be a list of words such as {value.split() or ['python', 'train.py']}, got {_quoted(value)}; "
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
        raise _Unfit(f"must be the id of a job, or After(id, 'ended'), got {_quoted(value)}")
    try:
        (dependency,) = AFTER.read(Scalar(f"{_text(job)}:{when}" if when else _text(job), is_quoted=True))
    except Wrong as wrong:
        raise _Unfit(wrong.problem) from None
    return cast(After, dependency)


def _mapped(read: Read, example: str) -> Read:
    def read_all(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _Unfit(f"must be a mapping such as {example}, got {_quoted(value)}")
        return {_text(key): _within(f".{key}", read, entry) for key, entry in value.items()}

    return read_all


def _word(*words: str) -> Read:
    def read(value: Any) -> str:
        if value not in words:
            raise _Unfit(f"must be {' or '.join(map(repr, words))}, got {_quoted(value)}")
        return str(value)

    return read


def _within(at: str, read: Read, value: Any) -> Any:
    try:
        return read(value)
    except _Unfit as unfit:
        raise _Unfit(unfit.problem, at + unfit.at) from None


def _quoted(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:59] + '…'} ({type(value).__name__})"


def _as_text(value: Any) -> str:
    return f"; say '{value}'" if isinstance(value, int | float) else ""


def _as_number(value: Any) -> str:
    """For a number that was written as text."""
    try:
        return f"; say {float(value):.15g}" if isinstance(value, str) and float(value) > 0 else ""
    except ValueError:
        return ""


def _reader(field: Field, hint: Any) -> Read:
    """Return how a value of a field is checked, by the type that the field has."""
    name, kind = field.target, field.kind
    if hint in (float, float | None):
        return _number("seconds" if name.endswith("_s") else "GB" if name.endswith("_gb") else "")
    if hint in (int, int | None):
        return _whole(1, limits.GPUS_MAX) if kind is v.WIDTH else _whole(0, limits.COUNT_MAX)
    if get_origin(hint) is Literal:
        return _word(*filter(None, get_args(hint)))
    if kind is v.PATH:
        return _path
    return _command if kind is v.COMMAND else _BY_TYPE[hint]


_BY_TYPE: dict[Any, Read] = {
    str: _text,
    bool: _boolean,
    bool | None: _boolean,
    tuple[str, ...]: _names,
    tuple[After, ...]: _after,
    tuple[int, ...]: _listed(_whole(0, limits.INDEX_MAX), "whole numbers", "range(10)"),
    Mapping[str, str]: _mapped(_text, "{'KEY': 'value'}"),
    Mapping[str, float]: _mapped(_number("steps per second"), "{'a100': 12.5}"),
}
_HINTS = get_type_hints(JobSpec)
_READERS: dict[str, Read] = {field.target: _reader(field, _HINTS[field.target]) for field in FIELDS}
_READERS |= {"gpus_min": _READERS["gpus"], "gpus_max": _READERS["gpus"], "package": _text}
