"""Random messages of any type, from their descriptors: values that the wire can carry, most often at an edge."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.message import Message

DEPTH_MAX = 4
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 60.0, 1e3, 1e9, 1e15, 1e18, 1e-9, 1e-308, 5e-324, 1.7e308, -1.7e308),
    *(float("inf"), float("-inf"), float("nan"), 2.0**53, 2.0**63),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "1",
        "2",
        "1_0",
        "17",
        "n1",
        "n2",
        "las",
        "fifo",
        "max_min_fairness",
        "v100",
        "k80",
        "ann",
    ),
    *(
        "\0",
        "\n",
        "\x1b[2J",
        "../../etc/passwd",
        "a/b",
        "a:b",
        "*",
        "?",
        "%s",
        "{}",
        "-1",
        "1e308",
        "nan",
        "é",
        "😀",
    ),
    *(
        "\u202e",
        "\ufeff",
        "sha256:" + "0" * 64,
        "gavel_0_0",
        "x" * 257,
        "y" * 5000,
        "las+packing",
        "/tenant//x",
    ),
)
INTS = {
    F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    F.CPPTYPE_UINT32: (0, 2**32 - 1),
    F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
SMALL_INTS = (0, 1, 2, 3, 4, 8, 100, 10_000)


class Values:
    """A source of values. `known` are texts that mean something to the scheduler so far, such as ids of leases."""

    def __init__(self, lots: random.Random, known: list[str]) -> None:
        self.lots, self.known = lots, known

    def fill(self, message: Message, depth: int = 0, part: float = 0.5) -> Any:
        """Give each field a random value with this probability; return the message."""
        for field in message.DESCRIPTOR.fields:
            if self.lots.random() < part:
                self.set(message, field, depth)
        return message

    def mutate(self, message: Message, depth: int = 0) -> Any:
        """Change one field somewhere in a message; return the message."""
        inner = [value for field, value in message.ListFields() if _is_one_message(field)]
        inner += [each for field, value in message.ListFields() if _are_messages(field) for each in value]
        if inner and depth < DEPTH_MAX and self.lots.random() < 0.6:
            self.mutate(self.lots.choice(inner), depth + 1)
        elif message.DESCRIPTOR.fields:
            self.set(message, self.lots.choice(message.DESCRIPTOR.fields), depth)
        return message

    def set(self, message: Message, field: F, depth: int) -> None:
        """Give one field a random value."""
        try:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._set_map(getattr(message, field.name), field, depth)
            elif field.is_repeated:
                values = getattr(message, field.name)
                for _ in range(self._count()):
                    if field.cpp_type == F.CPPTYPE_MESSAGE:
                        if depth < DEPTH_MAX:
                            self.fill(values.add(), depth + 1)
                    else:
                        values.append(self.scalar(field))
            elif field.cpp_type == F.CPPTYPE_MESSAGE:
                if depth < DEPTH_MAX:
                    getattr(message, field.name).SetInParent()
                    self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self.scalar(field))
        except (ValueError, TypeError):
            # Protobuf itself refuses this value, such as an unknown closed enum.
            pass

    def _set_map(self, values: Any, field: F, depth: int) -> None:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(self._count()):
            if value.cpp_type == F.CPPTYPE_MESSAGE:
                if depth < DEPTH_MAX:
                    self.fill(values[self.scalar(key)], depth + 1)
            else:
                values[self.scalar(key)] = self.scalar(value)

    def _count(self) -> int:
        return (
            self.lots.choice((0, 1, 1, 2, 3)) if self.lots.random() < 0.98 else self.lots.choice((100, 3000))
        )

    def scalar(self, field: F) -> Any:
        """A value of the field's kind."""
        lots, kind = self.lots, field.cpp_type
        if kind in (F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT):
            return lots.choice(FLOATS) if lots.random() < 0.8 else lots.uniform(-10, 1e4)
        if kind == F.CPPTYPE_BOOL:
            return lots.random() < 0.5
        if kind == F.CPPTYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return lots.choice(known) if lots.random() < 0.8 else lots.choice((-1, 99, 2**31 - 1, -(2**31)))
        if kind == F.CPPTYPE_STRING:
            return lots.randbytes(lots.choice((0, 1, 7, 300))) if field.type == F.TYPE_BYTES else self.text()
        least, most = INTS[kind]
        return lots.choice((*SMALL_INTS, least, most, least + 1, most - 1))

    def text(self) -> str:
        """A text: one that means something, one at an edge, or some characters."""
        lots = self.lots
        if self.known and lots.random() < 0.4:
            return lots.choice(self.known)
        if lots.random() < 0.8:
            return lots.choice(TEXTS)
        return "".join(
            chr(lots.choice((lots.randrange(1, 128), lots.randrange(160, 0xD7FF)))) for _ in range(9)
        )

    def body(self, message: Message) -> bytes:
        """The bytes of a message, some of them damaged."""
        lots, data = self.lots, message.SerializeToString()
        match lots.randrange(20):
            case 0:
                return lots.randbytes(lots.choice((1, 5, 100, 10_000)))
            case 1:
                return data[: lots.randrange(len(data) + 1)]
            case 2 if data:
                damaged = bytearray(data)
                for _ in range(lots.choice((1, 2, 8))):
                    damaged[lots.randrange(len(damaged))] = lots.randrange(256)
                return bytes(damaged)
            case 3:
                return data + lots.choice((b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 11, b"\x0b" * 200))
            case 4:
                return _nested(lots.choice((50, 99, 101, 5000)))
        return data


def _nested(depth: int) -> bytes:
    """Field 1 within field 1 within …"""
    data = b""
    for _ in range(depth):
        length, size = len(data), b""
        while length > 0x7F:
            size += bytes([length & 0x7F | 0x80])
            length >>= 7
        data = b"\x0a" + size + bytes([length]) + data
    return data


def _is_one_message(field: F) -> bool:
    return field.cpp_type == F.CPPTYPE_MESSAGE and not field.is_repeated


def _are_messages(field: F) -> bool:
    return (
        field.cpp_type == F.CPPTYPE_MESSAGE
        and field.is_repeated
        and not field.message_type.GetOptions().map_entry
    )
