"""The jobs of a submission: one, several, or a job file by its name; each is checked as a program's value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gavel.client.errors import InvalidJob
from gavel.client.jobs.errors import field_at, objection
from gavel.client.jobs.file import read_job_file
from gavel.client.jobs.kinds import KINDS, quoted
from gavel.client.jobs.spec import FIELDS, JobSpec
from gavel.client.jobs.values import nested
from protos.files.errors import BadInput

Jobs = JobSpec | Sequence[JobSpec] | str | os.PathLike[str]

_KINDS = {field.target: KINDS[field.kind] for field in FIELDS}
_KINDS |= {"gpus_min": _KINDS["gpus"], "gpus_max": _KINDS["gpus"], "package": KINDS["name"]}


def specs_of(jobs: Jobs) -> tuple[JobSpec, ...]:
    """Return each job. Raises InvalidJob if there is none, or if one of them is not a job."""
    if isinstance(jobs, str | os.PathLike):
        return read_job_file(os.fspath(jobs))
    several = isinstance(jobs, Iterable) and not isinstance(jobs, Mapping)
    # Programs without a type checker pass anything; `_checked` refuses what is no JobSpec.
    unchecked: tuple[Any, ...] = tuple(jobs) if several else (jobs,)  # type: ignore[arg-type]
    specs = tuple(
        _checked(spec, f"job {at + 1}" if len(unchecked) > 1 else "") for at, spec in enumerate(unchecked)
    )
    if not specs:
        raise InvalidJob("there is no job to submit")
    return specs


def _checked(spec: Any, many: str) -> JobSpec:
    """Return the job with lists as tuples and paths as text. InvalidJob names the first field that does not fit.

    `many`: which of several it is. What was read from a job file has been checked there.
    """
    if not isinstance(spec, JobSpec):
        hint = "; say JobSpec(**job)" if isinstance(spec, Mapping) else ""
        raise InvalidJob(
            f"must be a JobSpec, several, or the name of a job file, got {quoted(spec)}{hint}", field="jobs"
        )
    if spec.source is not None:
        return spec
    values = {name: value for name in _KINDS if (value := getattr(spec, name)) is not None and value != ""}
    try:
        checked = {name: nested(name, _KINDS[name].check, value) for name, value in values.items()}
    except BadInput as error:
        raise objection(spec, field_at(error.place), error.problem, many=many) from None
    return replace(spec, **checked)
