"""Decide which ended jobs and used keys leave the state.

The sender of `Forget` has already archived the jobs for users to read. If the core does not forget a job yet, the
sender asks again later. The core forgets a job if all of these conditions hold, each for the reason beside it:

    the job has ended and its last lease is closed  before that, its GPUs and its cost are not settled
    no lease, share or reservation names the job    rounds are planned from these
    the solver is not solving a problem with it     an answer that names an unknown job would be refused
    no unfinished job waits for the job             the waiting job depends on how the job ended
    every job of its array has ended                commands and dependencies may name the whole array

An idempotency key is kept as long as any job of its submission, so that a repeated submission never makes a second job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.core.facts import JobsForgotten
from scheduler.core.messages import Forget
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job


def on_forget(out: Outcome, message: Forget) -> None:
    """Forget the given jobs and keys, except those still in use."""
    state = out.state
    jobs = _forgettable(state, message.jobs)
    forgotten = frozenset(jobs)
    keys = tuple(dict.fromkeys(key for key in message.keys if _is_spent(state, key, forgotten)))
    if jobs or keys:
        out.fact(JobsForgotten(jobs=jobs, keys=keys, job_types=_types_unused_without(state, jobs)))


def _forgettable(state: SchedulerState, names: Iterable[str]) -> tuple[str, ...]:
    in_use = _jobs_in_use(state)
    unfinished = {job.id.partition("_")[0] for job in state.active.values() if job.spec.array}
    jobs = (state.jobs.get(name) for name in dict.fromkeys(names))
    return tuple(
        job.id
        for job in jobs
        if job is not None
        and job.is_terminal
        and job.lease is job.leaving is None
        and job.id not in in_use
        and not (job.spec.array and job.id.partition("_")[0] in unfinished)
        and not _is_in_open_problem(state, job)
    )


def _jobs_in_use(state: SchedulerState) -> set[str]:
    """Return the jobs that anything used in decisions refers to."""
    in_use = set(state.shares.job_row)
    if state.allocation is not None:
        in_use.update(state.allocation.shares.jobs)
    for holding in state.leases.values():
        in_use.update(holding.bundle.jobs)
    for bundle in state.round.reserved.values():
        in_use.update(bundle.jobs)
    for job in state.to_review.values():
        in_use.update(job.blocked_by)
    return in_use


def _is_in_open_problem(state: SchedulerState, job: Job) -> bool:
    """Whether the solver may be working on a problem with this job, which ended only after the problem was sent."""
    return not state.asked.answered and job.ended_s is not None and job.ended_s >= state.asked.at_s


def _is_spent(state: SchedulerState, key: str, forgotten: frozenset[str]) -> bool:
    """Whether all jobs of the key's submission are forgotten."""
    request = state.requests.get(key)
    return request is not None and all(job in forgotten or job not in state.jobs for job in request.jobs)


def _types_unused_without(state: SchedulerState, jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the job types that only these jobs have, and of which anything was measured, or plans struck out.

    Measured rates of types in the throughput table stay.
    """
    rates = state.rates
    measured = {kind for key in rates.measured for kind in (key.job_type, key.partner)}
    known = measured - rates.known | {plan.job_type for plan in rates.struck_out}
    known |= {key.job_type for key in state.measured.pools} | {kind for _, kind in state.cached.pools}
    types = {state.jobs[name].spec.job_type for name in jobs} & known - {""}
    if types:
        forgotten = frozenset(jobs)
        types -= {job.spec.job_type for job in state.jobs.values() if job.id not in forgotten}
    return tuple(sorted(types))
