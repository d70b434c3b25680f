"""Errors about a job, with its place in the job file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gavel.client.errors import GavelError, Invalid, InvalidJob
from gavel.client.jobs.spec import FIELDS, JobSpec
from protos.files.errors import Place, printable

_PLACE = re.compile(r"specs\[(\d+)\]\.?(.*)")

# The name of each field in job files, by its name in the protocol.
_NAMES = {field.target: field.name for field in FIELDS}
_NAMES |= {"gpus_min": "gpus", "gpus_max": "gpus", "upload": "package", "plans_from": "plan"}


def field_at(place: Place) -> str:
    """Return a place in a job as text: `env.A`, `command[1]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in place]
    return "".join(parts).removeprefix(".")


def file_field(path: str) -> str:
    """Return the name in job files of a field of the protocol: `env.A` for `launch.env.A`, `memory` for `memory_gb`."""
    path = path.removeprefix("launch.")
    first = _top(path)
    return _NAMES.get(first, first) + path[len(first) :]


def with_place(specs: Sequence[JobSpec], error: GavelError) -> GavelError:
    """Return an error of the scheduler with its place in the job file."""
    place = _PLACE.fullmatch(error.field)
    if not isinstance(error, Invalid) or place is None or int(place[1]) >= len(specs):
        return error
    spec, field = specs[int(place[1])], file_field(place[2])
    problem = error.message.removeprefix(f"{error.field}: ").removeprefix(f"{place[2]}: ")
    label = f"job {int(place[1]) + 1}" if len(specs) > 1 and spec.source is None else ""
    return objection(spec, field, problem, error.reason, label)


def objection(
    spec: JobSpec, field: str, problem: str, reason: str = "invalid", label: str = ""
) -> InvalidJob:
    """Return an error about a field of this job. `label`: "job 3" for the third of several from a program."""
    source = spec.source
    if source is None:
        return InvalidJob(
            problem, field=f"{label}: {field}" if label and field else label or field, reason=reason
        )
    line = source.lines.get(_top(field), source.line)
    return InvalidJob(problem, field=field, file=source.file, line=line, reason=reason)


def _top(path: str) -> str:
    """Return the name before the first dot or bracket."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]
