"""Messages of the protocol as JSON, and JSON or query parameters as messages, by their descriptors.

Fields keep their names. An enum is its word (JOB_STATE_RUNNING is "running"), a timestamp is RFC 3339 in UTC, and
numbers of 64 bits are numbers. A field without presence is always there; one with presence only if it is set.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from gavel.client.errors import Invalid
from gavel.client.reading import whole_numbers
from protos.gavel.v1.plain import words_of

M = TypeVar("M", bound=Message)
_TIMESTAMP = Timestamp.DESCRIPTOR.full_name
_STRUCT = Struct.DESCRIPTOR.full_name
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def invalid(field: str, problem: str) -> Invalid:
    """Return the error about a field of a request."""
    return Invalid(f"{field}: {problem}" if field else problem, field=field, reason="invalid")


# ------------------------------------------------------------------------------------------- messages to JSON


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON data. Encode it with msgspec, which writes NaN and infinity as null."""
    values = {}
    for name, has_presence, convert in _writers(message.DESCRIPTOR):
        if has_presence and not message.HasField(name):
            continue
        value = getattr(message, name)
        values[name] = value if convert is None else convert(value)
    return values


Write = Callable[[Any], Any]


@cache
def _writers(descriptor: Descriptor) -> tuple[tuple[str, bool, Write | None], ...]:
    return tuple((field.name, field.has_presence, _writer(field)) for field in descriptor.fields)


def _writer(field: FieldDescriptor) -> Write | None:
    if is_map(field):
        of_value = _writer(_value_field(field))
        return (
            dict if of_value is None else lambda values: {key: of_value(part) for key, part in values.items()}
        )
    convert = _single_writer(field)
    if not field.is_repeated:
        return convert
    return list if convert is None else lambda values: [convert(value) for value in values]


def _single_writer(field: FieldDescriptor) -> Write | None:
    if field.enum_type is not None:
        words = words_of(field.enum_type)
        # A newer scheduler may have more words; its number is better than nothing.
        return lambda number: words.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode()
    if field.message_type is None:
        return None
    kinds: dict[str, Write] = {_TIMESTAMP: _time_text, _STRUCT: _struct}
    return kinds.get(field.message_type.full_name, to_json)


def _time_text(stamp: Timestamp) -> str:
    moment = datetime.fromtimestamp(stamp.seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{stamp.nanos // 1_000_000:03d}Z"


def _struct(struct: Struct) -> Any:
    return whole_numbers({key: _value(part) for key, part in struct.fields.items()})


def _value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return {key: _value(part) for key, part in value.struct_value.fields.items()}
        case "list_value":
            return [_value(part) for part in value.list_value.values]
        case "number_value":
            return value.number_value
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None


# ------------------------------------------------------------------------------------------- JSON to messages


def fill(message: M, data: object, place: str = "") -> M:
    """Set the fields of a message from JSON data, and return it. Raises Invalid with the path of the wrong field."""
    if not isinstance(data, Mapping):
        raise invalid(place, f"must be a JSON object, got {_kind(data)}")
    for name, value in data.items():
        path = f"{place}.{name}" if place else str(name)
        field = _fields(message.DESCRIPTOR).get(name)
        if field is None:
            raise invalid(path[:200], "there is no such field")
        # As in the JSON of the protocol buffers, null is the same as leaving the field out.
        if value is not None:
            _set(message, field, value, path)
    return message


def fill_from_query(message: M, parameters: Sequence[tuple[str, str]]) -> M:
    """Set fields of a message from query parameters; repeated parameters fill lists. Raises Invalid."""
    values: dict[str, Any] = {}
    for name, text in parameters:
        field = _fields(message.DESCRIPTOR).get(name)
        if field is None or is_map(field) or not _is_scalar(field):
            raise invalid(name[:200], "there is no such parameter")
        if not text.isprintable():
            raise invalid(name, f"must be printable, got {_quoted(text)}")
        if field.is_repeated:
            values.setdefault(name, []).append(_of_text(field, text, name))
        elif name in values:
            raise invalid(name, "is given twice")
        else:
            values[name] = _of_text(field, text, name)
    return fill(message, values)


def _is_scalar(field: FieldDescriptor) -> bool:
    return field.message_type is None or field.message_type.full_name == _TIMESTAMP


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value_field(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field of a map's values."""
    return _fields(field.message_type)["value"]


def _fields(descriptor: Any) -> Mapping[str, FieldDescriptor]:
    fields: Mapping[str, FieldDescriptor] = descriptor.fields_by_name
    return fields


def _set(message: Message, field: FieldDescriptor, value: Any, place: str) -> None:
    try:
        if is_map(field):
            _set_map(message, field, value, place)
        elif field.is_repeated:
            if not isinstance(value, list):
                raise invalid(place, f"must be a list, got {_kind(value)}")
            _set_list(getattr(message, field.name), field, value, place)
        elif field.message_type is not None:
            _fill_part(getattr(message, field.name), value, place)
        else:
            setattr(message, field.name, _scalar(field, value, place))
    # protobuf refuses numbers that are out of range, and texts with half characters.
    except (ValueError, OverflowError):
        raise invalid(place, f"{_quoted(value)} is not a possible value") from None


def _set_map(message: Message, field: FieldDescriptor, value: Any, place: str) -> None:
    if not isinstance(value, Mapping):
        raise invalid(place, f"must be a JSON object, got {_kind(value)}")
    entries, of_value = getattr(message, field.name), _value_field(field)
    for key, part in value.items():
        entries[key] = _scalar(of_value, part, f"{place}.{key}")


def _set_list(entries: Any, field: FieldDescriptor, values: list[Any], place: str) -> None:
    for index, value in enumerate(values):
        if field.message_type is None:
            entries.append(_scalar(field, value, f"{place}[{index}]"))
        else:
            _fill_part(entries.add(), value, f"{place}[{index}]")


def _fill_part(part: Any, value: Any, place: str) -> None:
    if part.DESCRIPTOR.full_name == _TIMESTAMP:
        _fill_time(part, value, place)
    else:
        # A message without fields counts as given, too.
        part.SetInParent()
        fill(part, value, place)


def _fill_time(stamp: Timestamp, value: Any, place: str) -> None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        stamp.FromDatetime(datetime.fromtimestamp(value, UTC))
    except (ValueError, OverflowError, TypeError, OSError):
        problem = "must be a time, such as 2026-11-23T09:30:00Z, or seconds since 1970"
        raise invalid(place, f"{problem}; got {_quoted(value)}") from None


def _scalar(field: FieldDescriptor, value: Any, place: str) -> Any:
    """Return a value for a field that is no message; raise Invalid if it is of another type."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_ENUM:
            return _number_of(cast(EnumDescriptor, field.enum_type), value, place)
        case FieldDescriptor.CPPTYPE_BOOL:
            wanted, fits = "true or false", isinstance(value, bool)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(value, place)
        case FieldDescriptor.CPPTYPE_STRING:
            wanted, fits = "a text", isinstance(value, str)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            wanted, fits = "a number", isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            wanted, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
    if not fits:
        raise invalid(place, f"must be {wanted}, got {_quoted(value)}")
    return value


def _number_of(enum: EnumDescriptor, value: Any, place: str) -> int:
    numbers = {word: number for number, word in words_of(enum).items()}
    if not isinstance(value, str) or value not in numbers:
        known = ", ".join(word for word in numbers if word)
        raise invalid(place, f"must be one of {known}; got {_quoted(value)}")
    return numbers[value]


def _bytes(value: Any, place: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise invalid(place, f"must be base64, got {_quoted(value)}") from None


def _of_text(field: FieldDescriptor, text: str, place: str) -> Any:
    """Return the value of a query parameter for a field that is no message, or is a time."""
    if field.message_type is not None:
        return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) else text
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING | FieldDescriptor.CPPTYPE_ENUM:
            return text
        case FieldDescriptor.CPPTYPE_BOOL:
            return _TRUTHS.get(text.lower(), text)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return _finite(text, place)
    return int(text) if _WHOLE.fullmatch(text) else text


def _finite(text: str, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise invalid(place, f"must be a number, got {_quoted(text)}")
    return number


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return ascii(value[:60]) if not value.isprintable() else repr(value[:60])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)[:60]
    return _kind(value)
