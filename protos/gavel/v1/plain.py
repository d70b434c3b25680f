"""Convert messages to plain values and back, by their descriptors, so that no field can be forgotten.

A list becomes a tuple, a map a dict, an enum its word (RANKS_PER_NODE becomes "per_node"), and a message within another
a dict. Standard library and protobuf only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
Convert = Callable[[Any], Any]


class UnknownWord(ValueError):
    """An enum has a number that only a newer release defines."""

    def __init__(self, field: str, number: int) -> None:
        super().__init__(f"{field}: is {number}, which is not known here")
        self.field, self.number = field, number


def plain(message: Message, unknown: str | None = None, prefix: str = "") -> dict[str, Any]:
    """Return the fields that are set. `unknown` replaces unknown enum numbers; without it, they raise UnknownWord.

    `prefix`: the path of this message within another one, such as `launch.`, for the error.
    """
    return {
        field.name: _value(field, value, unknown, f"{prefix}{field.name}")
        for field, value in message.ListFields()
    }


def _value(field: FieldDescriptor, value: Any, unknown: str | None, place: str) -> Any:
    if field.enum_type is not None:
        return _word(field.enum_type, value, unknown, place)
    if field.message_type is None:
        return tuple(value) if field.is_repeated else value
    if _is_map(field):
        return dict(value)
    if field.is_repeated:
        return tuple([plain(entry, unknown, f"{place}[{index}].") for index, entry in enumerate(value)])
    return plain(value, unknown, f"{place}.")


def message_of(kind: type[M], values: Mapping[str, Any]) -> M:
    """Return a message with these fields. A field that is a message takes a mapping or a message."""
    return kind(**_arguments(cast(Descriptor, kind.DESCRIPTOR), values))


def _arguments(descriptor: Descriptor, values: Any) -> Any:
    """Convert plain values to arguments of the constructor of a message; return a message unchanged."""
    if isinstance(values, Message):
        return values
    converters = _converters(descriptor)
    converted = {name: convert(values[name]) for name, convert in converters.items() if name in values}
    return {**values, **converted}


@cache
def _converters(descriptor: Descriptor) -> dict[str, Convert]:
    """Return a converter for each field whose plain value the constructor does not accept: enums and messages."""
    converters: dict[str, Convert] = {}
    for field in descriptor.fields:
        if field.enum_type is not None:
            number_of = {word: number for number, word in words_of(field.enum_type).items()}.__getitem__
            converters[field.name] = _each(number_of) if field.is_repeated else number_of
        elif field.message_type is not None and not _is_map(field):
            nested = partial(_arguments, field.message_type)
            converters[field.name] = _each(nested) if field.is_repeated else nested
    return converters


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


@cache
def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _word(enum: EnumDescriptor, number: int, unknown: str | None, place: str) -> str:
    word = words_of(enum).get(number, unknown)
    if word is None:
        raise UnknownWord(place, number)
    return word


@cache
def words_of(enum: EnumDescriptor) -> dict[int, str]:
    """Return the words of an enum by number: PREFIX_WORD gives "word", and PREFIX_UNSPECIFIED an empty text."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {0: ""} | {
        value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number
    }
