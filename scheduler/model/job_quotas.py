"""Quotas on numbers of jobs, by job: how many may run at once, and how many may be unfinished.

As with quotas on GPUs, those of every tenant on the path from a job's tenant to the root count the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from scheduler.model.gpu_quotas import Level, QuotasByOwner
from scheduler.model.quota import Quota
from scheduler.model.settings import Settings

Counted = Literal["jobs_running", "jobs_unfinished"]


class JobQuota(NamedTuple):
    """How many jobs of a level may run, or be unfinished, at once."""

    level: Level
    jobs: int


class JobQuotas(QuotasByOwner[JobQuota]):
    """The quotas on jobs of some settings, by job."""

    def __init__(self, settings: Settings, counted: Counted) -> None:
        def job_quotas(level: Level, quota: Quota) -> Iterable[JobQuota]:
            jobs: int | None = getattr(quota, counted)
            return () if jobs is None else (JobQuota(level, jobs),)

        super().__init__(settings, job_quotas)
