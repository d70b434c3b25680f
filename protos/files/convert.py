"""Convert plain data to typed values; a value that does not fit its type is refused with its place and a remedy.

msgspec converts. If it refuses, we find the place ourselves, because msgspec's error does not name keys of mappings.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from protos.files.errors import BadInput, Place, literal, suggest

T = TypeVar("T")


def convert(data: Any, kind: type[T]) -> T:
    """Return plain data as a value of this type. Raises BadInput if a value does not fit.

    A float such as 2.0 counts as a whole number.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return msgspec.convert(_fitted(kind, data, ()), kind)


def expected(kind: Any) -> str:
    """Return a description of the values of this type, such as `a whole number above 0`."""
    return _expected(inspect.type_info(kind))


def bare(hint: Any) -> Any:
    """Return a type without its annotations, and without None and UNSET as alternatives."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part not in (types.NoneType, msgspec.UnsetType)]
        return bare(parts[0]) if len(parts) == 1 else hint
    return hint


def is_struct(kind: Any) -> bool:
    """Return whether this type is a msgspec struct: a table with known keys."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fitted(hint: Any, value: Any, place: Place) -> Any:
    """Return the value with whole floats as integers. Raises BadInput for the first part that does not fit."""
    kind = bare(hint)
    origin, args = get_origin(kind), get_args(kind)
    if is_struct(kind) and isinstance(value, dict):
        return _fitted_table(kind, value, place)
    if origin is dict and isinstance(value, dict):
        value = {key: _fitted(args[1], item, (*place, key)) for key, item in value.items()}
    elif origin in (list, tuple) and isinstance(value, list):
        kinds = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        if len(kinds) == len(value):
            value = [_fitted(kinds[index], item, (*place, index)) for index, item in enumerate(value)]
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        msgspec.convert(whole, hint)
    except msgspec.ValidationError:
        problem = f"{'' if place else 'the file '}is {literal(value)}"
        raise BadInput(problem, f"must be {expected(hint)}", place=place) from None
    return whole


def _fitted_table(kind: type[msgspec.Struct], value: dict[str, Any], place: Place) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    for key in value:
        if key not in hints:
            raise BadInput("is unknown", _advice(key, hints), place=(*place, key))
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            advice = f"must be {expected(hints[field.name])}"
            raise BadInput("is missing", advice, place=(*place, field.name))
    return {key: _fitted(hints[key], item, (*place, key)) for key, item in value.items()}


def _advice(key: str, hints: dict[str, Any]) -> str:
    """Return a suggestion for an unknown key: a key with a similar spelling, or the same key in an inner table."""
    advice = suggest(key, hints)
    tables_with_key = [
        table
        for table, hint in hints.items()
        if is_struct(bare(hint)) and key in bare(hint).__struct_fields__
    ]
    if tables_with_key and advice.startswith("there are"):
        return f'did you mean "{tables_with_key[0]}.{key}"?'
    return advice


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return _expected(info.type)
        case inspect.UnionType():
            parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
            return " or ".join(map(_expected, parts))
        case inspect.LiteralType():
            return " or ".join(map(literal, info.values))
        case inspect.IntType() | inspect.FloatType():
            number = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            if info.gt is not None:
                number += f" above {_number(info.gt)}"
                return number if info.le is None else f"{number}, at most {_number(info.le)}"
            return number if info.ge is None else f"{number} from {_number(info.ge)} to {_number(info.le)}"
        case inspect.StrType():
            return "text that is not empty" if info.min_length else "text in quotes"
        case inspect.BoolType():
            return "true or false"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}"
        case inspect.ListType() | inspect.VarTupleType():
            return "a list"
        case inspect.DictType() | inspect.StructType():
            return "a mapping that is not empty" if getattr(info, "min_length", None) else "a mapping"
    raise NotImplementedError(f"no description for {info}")


def _number(bound: float | None) -> str:
    return f"{bound:g}" if isinstance(bound, float) and abs(bound) >= 1e9 else f"{int(bound or 0):,}"
