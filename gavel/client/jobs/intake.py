"""The jobs of a submission: one, several, or a job file by its name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gavel.client.errors import InvalidJob
from gavel.client.jobs.checks import checked
from gavel.client.jobs.file import read_job_file
from gavel.client.jobs.spec import JobSpec

Jobs = JobSpec | Sequence[JobSpec] | str | os.PathLike[str]


def specs_of(jobs: Jobs) -> tuple[JobSpec, ...]:
    """Return each job. InvalidJob where there is none, or where one of them cannot be a job."""
    if isinstance(jobs, str | os.PathLike):
        return read_job_file(os.fspath(jobs))
    several = isinstance(jobs, Iterable) and not isinstance(jobs, Mapping)
    # Programs without a type checker pass anything; `checked` refuses what is no JobSpec.
    unchecked: tuple[Any, ...] = tuple(jobs) if several else (jobs,)  # type: ignore[arg-type]
    specs = tuple(
        checked(spec, f"job {at + 1}" if len(unchecked) > 1 else "") for at, spec in enumerate(unchecked)
    )
    if not specs:
        raise InvalidJob("there is no job to submit")
    return specs
