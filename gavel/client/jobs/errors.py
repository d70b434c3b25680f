"""Where the scheduler's objection to a job belongs: the job, and the line of the file in which it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gavel.client.errors import GavelError, Invalid, InvalidJob
from gavel.client.jobs.spec import FIELDS, JobSpec

_PLACE = re.compile(r"specs\[(\d+)\]\.?(.*)")

# The names in a job file of the protocol's fields, where they differ.
_NAMES = {field.target: field.name for field in FIELDS}
_NAMES |= {"gpus_min": "gpus", "gpus_max": "gpus", "upload": "package"}


def file_field(path: str) -> str:
    """`launch.env.A` is `env.A` in a job file, `memory_gb` is `memory`."""
    path = path.removeprefix("launch.")
    first = re.match(r"[^.\[]*", path)[0]  # type: ignore[index]  # it matches everything
    return _NAMES.get(first, first) + path[len(first) :]


def placed(specs: Sequence[JobSpec], error: GavelError) -> GavelError:
    """The same error, told where the job was written."""
    found = _PLACE.fullmatch(error.field)
    if not isinstance(error, Invalid) or found is None or int(found[1]) >= len(specs):
        return error
    spec, field = specs[int(found[1])], file_field(found[2])
    problem = error.message.removeprefix(f"{error.field}: ").removeprefix(f"{found[2]}: ")
    many = f"job {int(found[1]) + 1}" if len(specs) > 1 and spec.source is None else ""
    return objection(spec, field, problem, error.reason, many)


def objection(spec: JobSpec, field: str, problem: str, reason: str = "invalid", many: str = "") -> InvalidJob:
    """What is wrong with a field of this job."""
    source = spec.source
    if source is None:
        return InvalidJob(
            problem, field=f"{many}: {field}" if many and field else many or field, reason=reason
        )
    top = re.match(r"[^.\[]*", field)[0]  # type: ignore[index]
    line = source.lines.get(top, source.line)
    return InvalidJob(problem, field=field, file=source.file, line=line, reason=reason)
