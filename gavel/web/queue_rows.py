"""The queue as columns: what the page shows of each job, and nothing that a viewer may not see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from protos.gavel.v1 import jobs_pb2
from protos.gavel.v1.plain import words_of

Row = tuple[Any, ...]
_STATES = words_of(jobs_pb2.JobState.DESCRIPTOR)


def _seconds(message: Any, field: str) -> int:
    """Return a time in whole seconds since 1970; 0 if it is absent."""
    stamp: Timestamp = getattr(message, field)
    return int(stamp.seconds) if message.HasField(field) else 0


def _number(value: float, digits: int = 3) -> float:
    """Return a number with few digits, and whole numbers without a point."""
    rounded = round(value, digits)
    return int(rounded) if rounded.is_integer() else rounded


def _gpus(job: jobs_pb2.Job) -> int:
    if job.HasField("placement"):
        return len(job.placement.gpus)
    return job.spec.gpus if job.spec.HasField("gpus") else 1


def _nodes(job: jobs_pb2.Job) -> str:
    return ",".join(dict.fromkeys(gpu.rpartition(":")[0] for gpu in job.placement.gpus))


def _deadline(job: jobs_pb2.Job) -> int:
    spec = job.spec
    return int(job.submitted.seconds + spec.deadline_s) if spec.HasField("deadline_s") else 0


# The columns by name; docs/web.md describes them.
COLUMNS: dict[str, Callable[[jobs_pb2.Job], Any]] = {
    "id": lambda job: job.id,
    "name": lambda job: job.spec.name,
    "user": lambda job: job.spec.user,
    "tenant": lambda job: job.spec.tenant,
    "job_type": lambda job: job.spec.job_type,
    "state": lambda job: _STATES.get(job.state, ""),
    "gpus": _gpus,
    "gpus_min": lambda job: job.spec.gpus_min or _gpus(job),
    "gpus_max": lambda job: job.spec.gpus_max or _gpus(job),
    "worker_types": lambda job: ",".join(job.spec.worker_types),
    "worker_type": lambda job: job.placement.worker_type,
    "nodes": _nodes,
    "with_job": lambda job: job.placement.with_job,
    "weight": lambda job: _number(job.spec.weight if job.spec.HasField("weight") else 1.0),
    "array": lambda job: job.id.partition("_")[0] if job.HasField("array_index") else "",
    "submitted": lambda job: _seconds(job, "submitted"),
    "started": lambda job: _seconds(job, "started"),
    "since": lambda job: _seconds(job.placement, "since"),
    "until": lambda job: _seconds(job.placement, "until"),
    "deadline": _deadline,
    "steps": lambda job: _number(job.spec.steps, 0),
    "steps_done": lambda job: _number(job.steps_done, 0),
    "rate": lambda job: _number(job.placement.rate),
    "attempt": lambda job: job.attempt,
    "preemptions": lambda job: job.preemptions,
    "failures": lambda job: job.failures,
    "cost": lambda job: _number(job.cost, 2),
    "why": lambda job: job.why,
    "blocked_by": lambda job: ",".join(job.blocked_by),
}
NAMES = tuple(COLUMNS)
_GETTERS = tuple(COLUMNS.values())
GPUS = NAMES.index("gpus")
STATE = NAMES.index("state")
SUBMITTED = NAMES.index("submitted")


def order_of(job: str) -> tuple[int, int]:
    """Return the place of a job in the order of submission, from its id: "17", or "17_3" in an array."""
    number, _, index = job.partition("_")
    return int(number), int(index or -1)


def row_of(job: jobs_pb2.Job) -> Row:
    """Return the columns of one job."""
    return tuple([get(job) for get in _GETTERS])


def columns_of(rows: Iterable[Row]) -> dict[str, Sequence[Any]]:
    """Return rows as columns by name, all of the same length."""
    columns = list(zip(*rows, strict=True))
    return dict(zip(NAMES, columns, strict=True)) if columns else dict.fromkeys(NAMES, ())
