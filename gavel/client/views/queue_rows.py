"""The rows of a table of jobs."""

from __future__ import annotations

from datetime import datetime

from gavel.client.results import Job
from gavel.client.views.job_text import job_on, job_progress, job_ran_s, job_waited_s, job_where
from gavel.client.views.units import age, span

HEADS = ("id", "name", "user", "state", "GPUs", "done", "waited", "ran", "where, why")
# For a list with ended jobs.
ENDED_HEADS = (*HEADS[:5], "waited", "ran", "ended", "cost", "where, why")
# The column of the state, which is shown in colour.
STATE = HEADS.index("state")


def cells(job: Job, now: datetime, ended: bool = False) -> tuple[str, ...]:
    """Return the cells of HEADS; with `ended`, of ENDED_HEADS, even for a job that has not ended."""
    ran_s = job_ran_s(job, now)
    times = span(job_waited_s(job, now)), span(ran_s) if ran_s else ""
    cost = f"{job.cost:,.2f}" if job.cost else ""
    return (
        *(job.id, job.spec.name or job.spec.job_type, job.spec.user, job.state.value, job_on(job)),
        *((*times, age(job.ended, now), cost) if ended else (job_progress(job), *times)),
        job_where(job),
    )
