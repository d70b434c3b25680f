"""The jobs of a submission: one job, several jobs, or the name of a job file. Jobs from a program are checked here.

Most programs and commands submit nothing, so the readers of files and the checks are imported with the first job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gavel.client.errors import InvalidJob
from gavel.client.jobs.errors import field_at, objection
from gavel.client.jobs.spec import AutoPlans, JobSpec
from protos.files.errors import BadInput

Jobs = JobSpec | Sequence[JobSpec] | str | os.PathLike[str]


def specs_of(jobs: Jobs) -> tuple[JobSpec, ...]:
    """Return the jobs. Raises InvalidJob if there are none, or if a job is not valid."""
    if isinstance(jobs, str | os.PathLike):
        from gavel.client.jobs.file import read_job_file

        return read_job_file(os.fspath(jobs))
    several = isinstance(jobs, Iterable) and not isinstance(jobs, Mapping)
    # Programs without a type checker may pass anything; `_checked` refuses everything but a JobSpec.
    unchecked: tuple[Any, ...] = tuple(jobs) if several else (jobs,)  # type: ignore[arg-type]
    specs = tuple(
        _checked(spec, f"job {number}" if len(unchecked) > 1 else "")
        for number, spec in enumerate(unchecked, 1)
    )
    if not specs:
        raise InvalidJob("there is no job to submit")
    return specs


def has_auto_plans(specs: Iterable[JobSpec]) -> bool:
    """Whether one of these jobs has automatic plans that are not computed yet."""
    return any(isinstance(spec.plans, AutoPlans) for spec in specs)


def _checked(spec: Any, label: str) -> JobSpec:
    """Return the job with lists as tuples and paths as text. Raises InvalidJob for the first field that does not fit.

    `label`: "job 3" for the third of several. A job from a file is returned unchanged, because the file's reader has
    checked it.
    """
    from gavel.client.jobs.kinds import FIELD_KINDS, quoted
    from gavel.client.jobs.values import read_part

    if not isinstance(spec, JobSpec):
        hint = "; write JobSpec(**job)" if isinstance(spec, Mapping) else ""
        raise InvalidJob(
            f"must be a JobSpec, several, or the name of a job file, got {quoted(spec)}{hint}", field="jobs"
        )
    if spec.source is not None:
        return spec
    values = {
        name: value for name in FIELD_KINDS if (value := getattr(spec, name)) is not None and value != ""
    }
    try:
        checked = {name: read_part(name, FIELD_KINDS[name].check, value) for name, value in values.items()}
    except BadInput as error:
        raise objection(spec, field_at(error.place), error.problem, label=label) from None
    return replace(spec, **checked)
