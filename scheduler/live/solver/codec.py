"""A question for the solver and its answer as bytes: MessagePack, with arrays as raw bytes.

Both ends are the same program and nothing is stored, so the format has no version.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from scheduler.core.effects import Solve
from scheduler.core.messages import Solved


def encode_question(question: Solve, time_limit_s: float) -> bytes:
    """Encode a question and its time limit."""
    return msgspec.msgpack.encode((question, time_limit_s), enc_hook=_parts)


def decode_question(data: bytes) -> tuple[Solve, float]:
    """Decode a question and its time limit."""
    return _QUESTIONS.decode(data)


class Loaded(msgspec.Struct, frozen=True):
    """The names of all policies that the solver's process has loaded, and the faults of the others."""

    names: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def encode_loaded(loaded: Loaded) -> bytes:
    """Encode the first message of a solver's process."""
    return msgspec.msgpack.encode(loaded)


def decode_loaded(data: bytes) -> Loaded:
    """Decode the first message of a solver's process."""
    return _LOADED.decode(data)


def encode_answer(answer: Solved) -> bytes:
    """Encode an answer."""
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Solved:
    """Decode an answer."""
    return _ANSWERS.decode(data)


def _parts(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return an array as values that MessagePack supports. Questions have no other unsupported values."""
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"a question has a value of type {type(array).__name__}")
    return array.dtype.str, array.shape, array.tobytes()


def _array(kind: Any, parts: Any) -> Any:
    dtype, shape, data = parts
    return np.frombuffer(data, dtype=dtype).reshape(shape)


_QUESTIONS = msgspec.msgpack.Decoder(tuple[Solve, float], dec_hook=_array)
_LOADED = msgspec.msgpack.Decoder(Loaded)
_ANSWERS = msgspec.msgpack.Decoder(Solved)
