"""Whether plain tables are what a model asks for. Unlike msgspec's, these faults know their place exactly."""

from __future__ import annotations

import difflib
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from scheduler.config.faults import Fault, Place, words


def check(kind: Any, value: Any, place: Place) -> None:
    """A fault unless the value is of this kind; unlike msgspec's, it knows its place exactly."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        _check_table(kind, value, place)
    elif get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        _expect(list, value, place)
        for index, part in enumerate(value):
            check(get_args(kind)[0], part, (*place, index))
    elif get_origin(kind) is dict:
        _expect(dict, value, place)
        for key, part in value.items():
            check(get_args(kind)[1], part, (*place, key))
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise Fault(place, f"{words(place)} is {_shown(value)}", f"must be {kind_words(kind)}") from None


def _check_table(kind: type[msgspec.Struct], value: Any, place: Place) -> None:
    _expect(dict, value, place)
    hints = get_type_hints(kind)
    for key, part in value.items():
        if key not in hints:
            raise Fault((*place, key), f"unknown key '{words((*place, key))}'", _advice(str(key), hints))
        check(hints[key], part, (*place, key))
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            must = f"it must be {kind_words(hints[field.name])}"
            raise Fault(place, f"{words(place)} has no '{field.name}'", must)


def _advice(key: str, hints: dict[str, Any]) -> str:
    """What may have been meant by a key that is not there: one that is spelt much alike, or stands a table deeper."""
    if near := difflib.get_close_matches(key, hints, n=1):
        return f"did you mean '{near[0]}'?"
    for table, kind in hints.items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and key in kind.__struct_fields__:
            return f"did you mean '{table}.{key}'?"
    return f"there are {', '.join(hints)}"


def _expect(kind: type, value: Any, place: Place) -> None:
    if not isinstance(value, kind):
        name = words(place) or "the file"
        raise Fault(place, f"{name} is {_shown(value)}", f"must be {kind_words(kind)}")


def variable(prefix: str, place: Place) -> str:
    """What a key is called in the environment: GAVEL_SERVE_SCHEDULER__ROUND_S."""
    return prefix + "__".join(map(str, place)).upper()


def meant(kind: type[msgspec.Struct], name: str, key: str) -> str:
    """The variable for a key inside a table, for who wrote one underscore or left the table out; empty: none."""
    tables = {
        field.name: field.default.__struct_fields__
        for field in msgspec.structs.fields(kind)
        if isinstance(field.default, msgspec.Struct)
    }
    for table, inner in tables.items():
        for one in inner:
            if key in (one, f"{table}_{one}"):
                return variable(name[: -len(key)], (table, one))
    return ""


def kind_words(kind: Any) -> str:
    """What a value has to be, for people."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(kind_words(part) for part in get_args(kind) if part is not types.NoneType)
    plain = {
        str: "text in quotes",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        list: "a list",
        dict: "a table of keys and values",
    }
    return plain.get(get_origin(kind) or kind, str(kind))


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
