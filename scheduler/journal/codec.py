"""Facts to bytes and back. Same facts, same bytes.

JSON, so that a journal can be read with nothing but `sqlite3`. JSON has no infinity and no NaN; msgspec writes
`null` for them, which would come back as something else or not at all. So a fact that holds one is refused.
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

VERSION = 1  # of the vocabulary: one more for each release that adds a fact type or a field

HEAD = Struct("<qdi")  # seq, now_s, version
_SNAPSHOT_HEAD = Struct("<qi")
_encoder = msgspec.json.Encoder()
_decoder = JobDecoder(msgspec.json, list[AnyFact])
_CANNOT_ENCODE = (
    msgspec.EncodeError,
    TypeError,
    OverflowError,
    ValueError,
)  # ValueError: half a surrogate pair


def encode_facts(facts: Sequence[Fact]) -> bytes:
    """The payload of one record. Unwritable when reading it back would not give these facts."""
    try:
        payload = _encoder.encode(facts)
    except _CANNOT_ENCODE as error:
        raise Unwritable(f"a fact cannot be written: {error}") from None
    if b"null" in payload:
        _refuse_not_finite(facts)
    if b'"unknown":{' in payload:
        payload = _encoder.encode(restored(msgspec.json.decode(payload)))
    return payload


def decode_facts(payload: bytes) -> list[Fact]:
    """The facts of one record; msgspec.DecodeError (a ValueError) when it holds none."""
    return _decoder.decode(payload)  # type: ignore[return-value]


def record_crc(seq: int, now_s: float, version: int, payload: bytes) -> int:
    """The checksum of a record."""
    return crc32(payload, crc32(HEAD.pack(seq, now_s, version)))


def snapshot_crc(seq: int, version: int, payload: bytes) -> int:
    """The checksum of a snapshot. The word keeps it from passing for anything else."""
    return crc32(payload, crc32(_SNAPSHOT_HEAD.pack(seq, version), crc32(b"snapshot")))


def meta_crc(key: str, value: str) -> int:
    """The checksum of a line of `meta`."""
    return crc32(f"{key}\0{value}".encode())


def _refuse_not_finite(facts: Sequence[Fact]) -> None:
    for fact in facts:
        where = _not_finite(msgspec.to_builtins(fact, enc_hook=_as_it_is))
        if where is not None:
            raise Unwritable(f"{type(fact).__name__}{where}, which JSON does not have")


def _as_it_is(value: object) -> str:
    """A part that is text already."""
    return repr(value)


def _not_finite(value: object) -> str | None:
    """Where an infinity or a NaN stands in plain data, and what it is."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f" is {value}"
    if isinstance(value, dict):
        for key, part in value.items():
            if (found := _not_finite(part)) is not None:
                return f".{key}{found}"
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            if (found := _not_finite(part)) is not None:
                return f"[{index}]{found}"
    return None
