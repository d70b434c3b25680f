"""Texts about jobs and nodes: progress, where a job runs or why it does not. Pure functions that take `now`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gavel.client.views.units import short_number

if TYPE_CHECKING:
    from gavel.client.results import Job

NODES_SHOWN = 3


def job_on(job: Job) -> str:
    """Return the GPUs on which a job runs or ran longest, `a100×4`; for a waiting job, its request, `×4` or `×2-8`."""
    if job.placement is not None:
        return f"{job.placement.worker_type}×{len(job.placement.gpus)}"
    if job.ended and job.run_s and job.time_s:
        kind = max(job.time_s, key=lambda name: job.time_s[name])
        return f"{kind}×{round(job.gpu_s.get(kind, 0.0) / job.time_s[kind])}"
    return f"×{gpus_requested(job)}"


def gpus_requested(job: Job) -> str:
    """Return the number of GPUs that a job requests: `4`, or `2-8`."""
    low, high = job.spec.gpus_min, job.spec.gpus_max
    return f"{low}-{high}" if low and high and low != high else str(job.spec.gpus or 1)


def job_progress(job: Job) -> str:
    """Return the fraction that is done, `37%`, or the number of steps done if their total is unknown."""
    fraction = job.progress
    if fraction is not None:
        return (
            f"{100 * fraction:.0f}%" if fraction in (0.0, 1.0) else f"{min(max(100 * fraction, 1), 99):.0f}%"
        )
    return f"{short_number(job.steps_done)} steps" if job.steps_done else ""


def job_ran_s(job: Job, now: datetime) -> float:
    """Return the seconds for which a job has had processes, over all attempts, up to now."""
    placement = job.placement
    if placement is None or placement.since is None or placement.phase not in ("running", "stopping"):
        return job.run_s
    return job.run_s + max((now - placement.since).total_seconds(), 0.0)


def job_waited_s(job: Job, now: datetime) -> float:
    """Return the seconds for which a job has had no processes, from its submission to its end or to now."""
    if job.submitted is None:
        return 0.0
    return max(((job.ended or now) - job.submitted).total_seconds() - job_ran_s(job, now), 0.0)


def job_where(job: Job) -> str:
    """Return the nodes of a running job, or why a job does not run; for a stopping or ended job, both."""
    placement = job.placement
    if placement is None:
        return "; ".join(filter(None, (few(job.nodes), job_why(job))))
    words = few(placement.nodes)
    if placement.with_job:
        words += f" with {placement.with_job}"
    if placement.terminal is not None:
        words += f" (terminal {'attached' if placement.terminal.attached else 'not attached'})"
    if placement.phase == "running":
        return words
    why = "" if job.state == "running" else job_why(job)
    return f"{why}{'; ' if why else ''}{words} ({placement.phase})"


def job_why(job: Job) -> str:
    """Return why a job does not run, or how it failed."""
    if job.blocked_by and not job.state.is_final:
        return f"after {few(job.blocked_by)}"
    if job.state == "failed" and job.exit_code is not None:
        return why_with_exit_code(job)
    return why_words(job)


def why_with_exit_code(job: Job) -> str:
    """Return the reason for the job's state, with the exit code before it unless the reason includes the code."""
    # Words of reasons that include the exit code.
    exits = (f"code {job.exit_code}", "killed by", "not be started")
    if job.exit_code is None or any(words in job.why for words in exits):
        return job.why
    return "; ".join(filter(None, (f"exit code {job.exit_code}", job.why)))


def why_words(job: Job) -> str:
    """Return the reason for the job's state, shortened to `by ann` if the state implies the action."""
    action, by, user = job.why.partition(" by ")
    is_clear = {"hold": "held", "cancel": "cancelled"}.get(action) == job.state
    return f"by {user}" if by and is_clear else job.why


def few(names: Sequence[str], limit: int = NODES_SHOWN) -> str:
    """Return the first `limit` names and the number of the others: `a, b, c +4`."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" +{rest}" if rest > 0 else "")


def ids(jobs: Sequence[str]) -> str:
    """Return the jobs in words: `job 17`, `jobs 17, 18 and 19`, `jobs 12_0 to 12_9 (10)`."""
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    arrays = {job.partition("_")[0] for job in jobs}
    if len(jobs) > 3 and (len(arrays) == 1 or all("_" not in job for job in jobs)):
        return f"jobs {jobs[0]} to {jobs[-1]} ({len(jobs)})"
    if len(jobs) > 12:
        return f"{len(jobs)} jobs from {jobs[0]}"
    return f"jobs {', '.join(jobs[:-1])} and {jobs[-1]}"


def counts_by_state(jobs: Iterable[Job]) -> str:
    """Return how many jobs are in each state: `2 running, 1 queued`."""
    counts = Counter(job.state.value for job in jobs)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
