"""Plain data as typed values. What does not fit its type is refused with its place and what belongs there.

msgspec converts. Where it refuses, we look for the place ourselves: its own path has `[...]` for a key of a mapping.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from protos.files.yaml import Place, words

T = TypeVar("T")
QUOTED_MAX = 60
# How many names a message lists where none is similar.
LISTED_MAX = 12


class Misfit(ValueError):
    """A value that cannot be used: the keys and positions that lead to it, what is wrong with it, what to do."""

    def __init__(self, place: Place, problem: str, advice: str = "", line: int | None = None) -> None:
        super().__init__(f"{words(place)} {problem}{'; ' if advice else ''}{advice}".strip())
        self.place, self.problem, self.advice, self.line = place, problem, advice, line


def convert(data: Any, kind: type[T]) -> T:
    """Return plain data as a value of this type. Whole numbers may be written as 2.0. Misfit says what does not fit."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return msgspec.convert(_fitted(kind, data, ()), kind)


def expected(kind: Any) -> str:
    """Return what a value of this type has to be, for a message."""
    return _expected(inspect.type_info(kind))


def quote(value: Any) -> str:
    """Return a value for a message: short, printable, of a list or table only its kind."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= QUOTED_MAX else f"{text[: QUOTED_MAX - 1]}…"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'gpus'?`, or the names there are."""
    names = list(known)
    lowered = {known.lower(): known for known in reversed(names)}
    if near := difflib.get_close_matches(name.lower()[:100], lowered, n=1):
        return f"did you mean '{lowered[near[0]]}'?"
    more = len(names) - LISTED_MAX
    return f"there are {', '.join(names[:LISTED_MAX])}{f' and {more} more' if more > 0 else ''}"


def bare(hint: Any) -> Any:
    """Return a type without what is annotated, and without the None or UNSET that it may be instead."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part not in (types.NoneType, msgspec.UnsetType)]
        return bare(parts[0]) if len(parts) == 1 else hint
    return hint


def is_struct(kind: Any) -> bool:
    """Return whether this type is a table of known keys."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fitted(hint: Any, value: Any, place: Place) -> Any:
    """Return the value with floats as whole numbers where those belong. Misfit for the first that does not fit."""
    kind = bare(hint)
    origin, args = get_origin(kind), get_args(kind)
    if is_struct(kind) and isinstance(value, dict):
        return _fitted_table(kind, value, place)
    if origin is dict and isinstance(value, dict):
        value = {key: _fitted(args[1], item, (*place, key)) for key, item in value.items()}
    elif origin in (list, tuple) and isinstance(value, list):
        kinds = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        if len(kinds) == len(value):
            value = [_fitted(kinds[at], item, (*place, at)) for at, item in enumerate(value)]
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        msgspec.convert(whole, hint)
    except msgspec.ValidationError:
        subject = "" if place else "the file "
        raise Misfit(place, f"{subject}is {quote(value)}", f"must be {expected(hint)}") from None
    return whole


def _fitted_table(kind: type[msgspec.Struct], value: dict[str, Any], place: Place) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    for key in value:
        if key not in hints:
            raise Misfit((*place, key), "is unknown", _advice(key, hints))
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            raise Misfit((*place, field.name), "is missing", f"must be {expected(hints[field.name])}")
    return {key: _fitted(hints[key], item, (*place, key)) for key, item in value.items()}


def _advice(key: str, hints: dict[str, Any]) -> str:
    """Return what an unknown key may have meant: one that is spelt much alike, or one that stands a table deeper."""
    advice = suggest(key, hints)
    deeper = [
        table
        for table, hint in hints.items()
        if is_struct(bare(hint)) and key in bare(hint).__struct_fields__
    ]
    return f"did you mean '{deeper[0]}.{key}'?" if deeper and advice.startswith("there are") else advice


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return _expected(info.type)
        case inspect.UnionType():
            parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
            return " or ".join(map(_expected, parts))
        case inspect.LiteralType():
            return " or ".join(f"'{value}'" for value in info.values)
        case inspect.IntType() | inspect.FloatType():
            number = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            bounds = {"above": info.gt, "from": info.ge, "to": info.le}
            return " ".join(
                [number, *(f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None)]
            )
        case inspect.StrType():
            return "text that is not empty" if info.min_length else "text in quotes"
        case inspect.BoolType():
            return "true or false"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}"
        case inspect.ListType() | inspect.VarTupleType():
            return "a list"
        case inspect.DictType() | inspect.StructType():
            return "a table of keys and values"
    raise NotImplementedError(f"no words for {info}")
