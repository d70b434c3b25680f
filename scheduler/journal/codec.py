"""Facts to bytes and back. Equal facts have equal bytes.

The format is JSON, so that `sqlite3` is enough to read a journal. JSON has no infinity and no NaN: msgspec writes
`null` for them, and decoding `null` gives another value or an error. So a fact with an infinity or a NaN is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from struct import Struct
from zlib import crc32

import msgspec

from scheduler.core.facts import AnyFact, Fact
from scheduler.journal.errors import Unwritable
from scheduler.model.launch import JobDecoder, restored

# The version of the vocabulary of facts. Each release that adds a fact type or a field increases this number.
VERSION = 2

HEAD = Struct("<qdi")  # seq, now_s, version
_SNAPSHOT_HEAD = Struct("<qi")
_encoder = msgspec.json.Encoder()
_decoder = JobDecoder(msgspec.json, list[AnyFact])
# The errors of the encoder; it raises ValueError for a string with a lone surrogate.
_CANNOT_ENCODE = (msgspec.EncodeError, TypeError, OverflowError, ValueError)


def encode_facts(facts: Sequence[Fact]) -> bytes:
    """Encode the facts of one record; raise Unwritable if decoding would not return the same facts."""
    try:
        payload = _encoder.encode(facts)
    except _CANNOT_ENCODE as error:
        raise Unwritable(f"a fact cannot be written: {error}") from None
    if b"null" in payload:
        _refuse_infinite(facts)
    # In memory, `Launch.unknown` has the fields that only other releases know; in the journal they are fields like any
    # other.
    if b'"unknown":{' in payload:
        payload = _encoder.encode(restored(msgspec.json.decode(payload)))
    return payload


def decode_facts(payload: bytes) -> list[Fact]:
    """Decode the facts of one record; raise msgspec.DecodeError (a ValueError) if it is invalid."""
    return _decoder.decode(payload)  # type: ignore[return-value]


def record_crc(seq: int, now_s: float, version: int, payload: bytes) -> int:
    """Return the checksum of a record."""
    return crc32(payload, crc32(HEAD.pack(seq, now_s, version)))


def snapshot_crc(seq: int, version: int, payload: bytes) -> int:
    """Return the checksum of a snapshot. It covers the word "snapshot", so a record cannot have the same one."""
    return crc32(payload, crc32(_SNAPSHOT_HEAD.pack(seq, version), crc32(b"snapshot")))


def meta_crc(key: str, value: str) -> int:
    """Return the checksum of a row of `meta`."""
    return crc32(f"{key}\0{value}".encode())


def _refuse_infinite(facts: Sequence[Fact]) -> None:
    for fact in facts:
        # `repr` replaces values of types that msgspec does not support: only floats matter here.
        fault = _first_infinite(msgspec.to_builtins(fact, enc_hook=repr))
        if fault is not None:
            raise Unwritable(f"{type(fact).__name__}{fault}, which JSON cannot hold")


def _first_infinite(value: object) -> str | None:
    """Return the path and value of the first infinity or NaN in plain data; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f" is {value}"
    if isinstance(value, dict):
        for key, part in value.items():
            if (fault := _first_infinite(part)) is not None:
                return f".{key}{fault}"
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            if (fault := _first_infinite(part)) is not None:
                return f"[{index}]{fault}"
    return None
