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
# The format of a profile, from which `gavel plan` makes plans.
PROFILE = "gavel-profile/1"
FILE_BYTES_MAX = 4 * 2**20
_PARTS = ("tensor", "pipeline", "data")
# The fields that may be left out. Jobs may have more of their own.
_OPTIONAL = (
    *_PARTS,
    "label",
    "memory_bytes",
    "schedule",
    "microbatch",
    "chunks",
    "recompute",
    "stages",
    "layers",
)


def read_plans(path: str | os.PathLike[str]) -> tuple[Plan, ...]:
    """Return the plans in a file. Raises BadInput if it cannot be read or if an entry is no plan."""
    value = read_document(path)
    return plans_of(value.get("plans", [value]) if isinstance(value, Mapping) else value)


def read_document(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file. Raises BadInput if it cannot be read."""
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
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        where = f" ({error})" if type(error) is ValueError else where
        raise BadInput(f"is '{printable(name)}', which is not JSON{where}") from None


def _refuse_constant(word: str) -> None:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(f"it contains {word}")


def json_text(value: Any, *place: str | int) -> str:
    """Return a value as JSON. Raises BadInput, with the place, for a value that JSON does not have."""
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair cannot be sent.
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot be written as JSON: {error}", place=place) from None
    return text


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
    if entry.get("format") == PROFILE:
        raise BadInput("is a profile: `gavel plan PROFILE … --json` makes plans of it", place=(index,))
    if entry.get("fits") is False:
        raise BadInput("does not fit into the memory of its GPUs: leave it out", place=(index,))
    _refuse_misspelt(entry, index)
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
    label = entry.get("label") or "·".join(f"{name[0]}{part}" for name, part in parts.items())
    return Plan(
        worker_type,
        gpus,
        str(label),
        _rate(entry, index),
        _number(entry.get("memory_bytes", 0.0), index, "memory_bytes", least=0.0) / 1e9,
        json_text({"format": FORMAT, **entry}, index),
        gpus_together=parts["tensor"],
        exchange=_exchange(entry, parts),
    )


def _refuse_misspelt(entry: Mapping[str, Any], index: int) -> None:
    """Refuse a field such as `pipelin`, which would be taken for one of the job's own."""
    import difflib

    missing = [name for name in _OPTIONAL if name not in entry]
    for name in map(str, entry if missing else ()):
        near = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.9)
        if near and name not in _OPTIONAL:
            raise BadInput(f"there is no field '{printable(name)}'; did you mean {near[0]}?", place=(index,))


def _rate(entry: Mapping[str, Any], index: int) -> float:
    """Return the steps per second: `rate`, or else 1 / `step_s`."""
    if "rate" in entry:
        return _number(entry["rate"], index, "rate")
    if "step_s" not in entry:
        raise BadInput(
            "has neither step_s, the time of a step, nor rate, the steps per second", place=(index,)
        )
    return 1.0 / _number(entry["step_s"], index, "step_s")


def _exchange(entry: Mapping[str, Any], parts: Mapping[str, int]) -> float:
    """Return the part of a step that exchanges data, as `gavel plan` states it; 0 if the entry does not.

    With one replica, `data_s` is only the update of the weights, which exchanges nothing.
    """
    names = ("step_s", *(f"{name}_s" for name in _PARTS if parts[name] > 1))
    values = [entry.get(name) for name in names]
    times_s = [value for value in values if isinstance(value, int | float) and 0 <= value <= 1e300]
    if len(times_s) < len(names) or not times_s[0]:
        return 0.0
    return min(sum(times_s[1:]) / times_s[0], 1.0)


def _number(value: Any, index: int, field: str, least: float = 1e-12) -> float:
    if type(value) not in (int, float) or not least <= value <= 1e300:
        raise BadInput(
            f"must be a number {'from 0' if least == 0 else 'above 0'}, got {value!r:.60}",
            place=(index, field),
        )
    return float(value)
