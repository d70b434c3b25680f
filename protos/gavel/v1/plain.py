"""Convert messages to plain values and back by their descriptors, so that no field can be forgotten.

Lists are tuples, maps are dicts, an enum is its word (RANKS_PER_NODE of the field `ranks` is "per_node"), and a message
within another is a dict of its own. Standard library and protobuf only.
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
    """A newer program sent an enum number that this one does not know."""

    def __init__(self, field: str, number: int) -> None:
        super().__init__(f"{field}: is {number}, which is not known here")
        self.field, self.number = field, number


def plain(message: Message, unknown: str | None = None, at: str = "") -> dict[str, Any]:
    """Return the given fields. `unknown` replaces unknown enum numbers; without it, UnknownWord is raised.

    `at`: the place of the message within another one, for the error.
    """
    return {
        field.name: _value(field, value, unknown, f"{at}{field.name}")
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
    """Return a message with these fields given. A message within it may be given as one."""
    return kind(**_as_given(cast(Descriptor, kind.DESCRIPTOR), values))


def _as_given(message: Descriptor, values: Any) -> Any:
    """Return what the constructor of a message takes for these values, or for a message in their place."""
    if isinstance(values, Message):
        return values
    converters = _converters(message)
    converted = {name: convert(values[name]) for name, convert in converters.items() if name in values}
    return {**values, **converted}


@cache
def _converters(message: Descriptor) -> dict[str, Convert]:
    """Return the conversions for fields that a constructor does not take as plain values: enums and messages."""
    converters: dict[str, Convert] = {}
    for field in message.fields:
        if field.enum_type is not None:
            number = {word: number for number, word in words_of(field.enum_type).items()}.__getitem__
            converters[field.name] = _each(number) if field.is_repeated else number
        elif field.message_type is not None and not _is_map(field):
            nested = partial(_as_given, field.message_type)
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
    """Return the words of an enum by number: PREFIX_WORD is "word", and PREFIX_UNSPECIFIED is empty."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {0: ""} | {
        value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number
    }
