"""A question for the solver and its answer as bytes: MessagePack, with arrays as they lie in memory.

Both ends are the same program and nothing is stored, so the format has no version.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from policies.problem import Columns, Jobs, Problem, Tenant
from scheduler.core.effects import Pairs, Solve
from scheduler.core.messages import Solved

T = TypeVar("T")
_SOLVED = msgspec.msgpack.Decoder(Solved)


def encode_question(question: Solve, time_limit_s: float) -> bytes:
    """Encode a question and its time limit."""
    parts = {
        "number": question.number,
        "policy": question.policy,
        "problem": _plain(question.problem),
        "pairs": None if question.pairs is None else _plain(question.pairs),
        "at": _plain(question.at),
        "time_limit_s": time_limit_s,
    }
    return msgspec.msgpack.encode(parts)


def decode_question(data: bytes) -> tuple[Solve, float]:
    """Decode a question and its time limit."""
    parts = msgspec.msgpack.decode(data)
    values = parts["problem"]
    problem = Problem(
        **{
            **{name: _array(value) for name, value in values.items() if name not in _NESTED},
            "jobs": _built(Jobs, values["jobs"]),
            "columns": _built(Columns, values["columns"]),
            "tenants": tuple(Tenant(**tenant) for tenant in values["tenants"]),
        }
    )
    pairs = None if parts["pairs"] is None else _built(Pairs, parts["pairs"])
    question = Solve(parts["number"], parts["policy"], problem, pairs, _array(parts["at"]))
    return question, parts["time_limit_s"]


def encode_answer(answer: Solved) -> bytes:
    """Encode an answer."""
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Solved:
    """Decode an answer."""
    return _SOLVED.decode(data)


_NESTED = frozenset({"jobs", "columns", "tenants"})
# Merged problems alone have this, and a question is never merged.
_LEFT_OUT = frozenset({"merged_from"})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"": value.dtype.str, "of": value.shape, "is": np.ascontiguousarray(value).tobytes()}
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init and field.name not in _LEFT_OUT]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value


def _array(value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(value["is"], dtype=value[""]).reshape(value["of"])
    return tuple(value) if isinstance(value, list) else value


def _built(kind: type[T], values: dict[str, Any]) -> T:
    return kind(**{name: _array(value) for name, value in values.items()})
