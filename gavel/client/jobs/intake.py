"""What may be submitted: a job, several, or a job file by its name."""

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
    """Each job. InvalidJob where there is none, or one is not what a job can be."""
    if isinstance(jobs, str | os.PathLike):
        return read_job_file(os.fspath(jobs))
    several = isinstance(jobs, Iterable) and not isinstance(jobs, Mapping)
    given: tuple[Any, ...] = tuple(jobs) if several else (jobs,)  # type: ignore[arg-type]  # checked here
    specs = tuple(checked(spec, f"job {at + 1}" if len(given) > 1 else "") for at, spec in enumerate(given))
    if not specs:
        raise InvalidJob("there is no job to submit")
    return specs
