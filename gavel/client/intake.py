"""What may be submitted: a job, several, or a job file by its name."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gavel.client.errors import InvalidJob
from gavel.client.job_file import read_job_file
from gavel.client.specs import JobSpec

Jobs = JobSpec | Sequence[JobSpec] | str | os.PathLike[str]


def specs_of(jobs: Jobs) -> tuple[JobSpec, ...]:
    """Each job. InvalidJob where there is none."""
    if isinstance(jobs, str | os.PathLike):
        return read_job_file(os.fspath(jobs))
    specs = (jobs,) if isinstance(jobs, JobSpec) else tuple(jobs)
    for spec in specs:
        if not isinstance(spec, JobSpec):
            raise TypeError(f"jobs: must be JobSpec or the name of a job file, got {type(spec).__name__}")
    if not specs:
        raise InvalidJob("there is no job to submit")
    return specs
