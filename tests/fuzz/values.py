"""Random messages of any type, made from their descriptors, with values that are valid protobuf and often extreme."""

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
    """A source of random values. `known` are texts that the scheduler knows, such as ids of leases."""

    def __init__(self, chance: random.Random, known: list[str]) -> None:
        self.chance, self.known = chance, known

    def fill(self, message: Message, depth: int = 0, part: float = 0.5) -> Any:
        """Give each field a random value with the probability `part`; return the message."""
        for field in message.DESCRIPTOR.fields:
            if self.chance.random() < part:
                self.set(message, field, depth)
        return message

    def mutate(self, message: Message, depth: int = 0) -> Any:
        """Change one field somewhere in a message; return the message."""
        inner = [value for field, value in message.ListFields() if _is_one_message(field)]
        inner += [each for field, value in message.ListFields() if _are_messages(field) for each in value]
        if inner and depth < DEPTH_MAX and self.chance.random() < 0.6:
            self.mutate(self.chance.choice(inner), depth + 1)
        elif message.DESCRIPTOR.fields:
            self.set(message, self.chance.choice(message.DESCRIPTOR.fields), depth)
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
            self.chance.choice((0, 1, 1, 2, 3))
            if self.chance.random() < 0.98
            else self.chance.choice((100, 3000))
        )

    def scalar(self, field: F) -> Any:
        """Return a random value of the field's type."""
        chance, kind = self.chance, field.cpp_type
        if kind in (F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT):
            return chance.choice(FLOATS) if chance.random() < 0.8 else chance.uniform(-10, 1e4)
        if kind == F.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind == F.CPPTYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return (
                chance.choice(known)
                if chance.random() < 0.8
                else chance.choice((-1, 99, 2**31 - 1, -(2**31)))
            )
        if kind == F.CPPTYPE_STRING:
            return (
                chance.randbytes(chance.choice((0, 1, 7, 300))) if field.type == F.TYPE_BYTES else self.text()
            )
        least, most = INTS[kind]
        return chance.choice((*SMALL_INTS, least, most, least + 1, most - 1))

    def text(self) -> str:
        """Return a text that the scheduler knows, an unusual text, or random characters."""
        chance = self.chance
        if self.known and chance.random() < 0.4:
            return chance.choice(self.known)
        if chance.random() < 0.8:
            return chance.choice(TEXTS)
        return "".join(
            chr(chance.choice((chance.randrange(1, 128), chance.randrange(160, 0xD7FF)))) for _ in range(9)
        )

    def body(self, message: Message) -> bytes:
        """Return the bytes of a message, which are damaged in a quarter of the cases."""
        chance, data = self.chance, message.SerializeToString()
        match chance.randrange(20):
            case 0:
                return chance.randbytes(chance.choice((1, 5, 100, 10_000)))
            case 1:
                return data[: chance.randrange(len(data) + 1)]
            case 2 if data:
                damaged = bytearray(data)
                for _ in range(chance.choice((1, 2, 8))):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                return bytes(damaged)
            case 3:
                return data + chance.choice((b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 11, b"\x0b" * 200))
            case 4:
                return _nested(chance.choice((50, 99, 101, 5000)))
        return data


def _nested(depth: int) -> bytes:
    """Return a message in whose field 1 is a message in whose field 1 is a message, to this depth."""
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
