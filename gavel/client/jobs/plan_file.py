"""Files with plans, in the form in which `gavel plan --json` prints them: `{"plans": [{…}, …]}`.

The fields that the scheduler needs are read from each entry; the whole entry is the document for the job's processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from gavel.client.jobs.spec import Plan
from protos.files.errors import BadInput, printable

# The format of the document, which `gavel.training.parallel` reads.
FORMAT = "gavel-plan/1"
FILE_BYTES_MAX = 4 * 2**20
_PARTS = ("tensor", "pipeline", "data")


def read_plans(path: str | os.PathLike[str]) -> tuple[Plan, ...]:
    """Return the plans in a file. Raises BadInput if it cannot be read or if an entry is no plan."""
    # Submitting a job without plans loads no library for files.
    import json

    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise BadInput(f"is '{printable(name)}': {reason}") from None
    if len(content) > FILE_BYTES_MAX:
        raise BadInput(f"is '{printable(name)}', which is larger than {FILE_BYTES_MAX // 2**20} MiB")
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInput(f"is '{printable(name)}', which is not JSON{where}") from None
    return plans_of(value.get("plans", [value]) if isinstance(value, Mapping) else value)


def _refuse_constant(word: str) -> None:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(word)


def plans_of(value: Any) -> tuple[Plan, ...]:
    """Return plans that are given as a list, each a `Plan` or a mapping as in a file. Raises BadInput."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise BadInput(
            "must be a list of plans, or the name of a file with one: `gavel plan … --json > plans.json`"
        )
    plans = [entry if isinstance(entry, Plan) else _plan(entry, index) for index, entry in enumerate(value)]
    if not plans:
        raise BadInput("has no plan in it: leave it out, or write none")
    return tuple(plans)


def _plan(entry: Any, index: int) -> Plan:
    if not isinstance(entry, Mapping):
        raise BadInput("must be a plan such as {worker_type: a100, gpus: 8, step_s: 1.5, …}", place=(index,))
    if entry.get("fits") is False:
        raise BadInput("does not fit into the memory of its GPUs: leave it out", place=(index,))
    worker_type = entry.get("worker_type")
    if not isinstance(worker_type, str) or not worker_type:
        raise BadInput("is missing: the type of the GPUs", place=(index, "worker_type"))
    gpus = entry.get("gpus")
    if type(gpus) is not int or gpus < 1:
        raise BadInput("must be a whole number from 1 up", place=(index, "gpus"))
    parts = {name: entry.get(name, 1) for name in _PARTS}
    if not all(type(part) is int and part > 0 for part in parts.values()):
        raise BadInput("tensor, pipeline and data must be whole numbers from 1 up", place=(index,))
    if any(name in entry for name in _PARTS) and math.prod(parts.values()) != gpus:
        product = " × ".join(f"{name} {part}" for name, part in parts.items())
        raise BadInput(f"is for {gpus} GPUs, but {product} are {math.prod(parts.values())}", place=(index,))
    import json

    label = entry.get("label") or "·".join(f"{name[0]}{part}" for name, part in parts.items())
    return Plan(
        worker_type,
        gpus,
        str(label),
        _rate(entry, index),
        _number(entry.get("memory_bytes", 0.0), index, "memory_bytes", least=0.0) / 1e9,
        json.dumps({"format": FORMAT, **entry}, ensure_ascii=False),
        gpus_together=parts["tensor"],
    )


def _rate(entry: Mapping[str, Any], index: int) -> float:
    """Return the steps per second: `rate`, or else 1 / `step_s`."""
    if "rate" in entry:
        return _number(entry["rate"], index, "rate")
    if "step_s" not in entry:
        raise BadInput(
            "has neither step_s, the time of a step, nor rate, the steps per second", place=(index,)
        )
    return 1.0 / _number(entry["step_s"], index, "step_s")


def _number(value: Any, index: int, field: str, least: float = 1e-12) -> float:
    if type(value) not in (int, float) or not least <= value <= 1e300:
        raise BadInput(
            f"must be a number {'from 0' if least == 0 else 'above 0'}, got {value!r:.60}",
            place=(index, field),
        )
    return float(value)
