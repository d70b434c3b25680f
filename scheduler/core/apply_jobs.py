"""Apply facts about jobs to the state."""

from __future__ import annotations

from scheduler.core import facts as f
from scheduler.core.state import Request, SchedulerState
from scheduler.model.jobs import PREEMPT, START, TERMINAL, Job, JobState, Move, after


def job_submitted(state: SchedulerState, now_s: float, fact: f.JobSubmitted) -> None:
    """Add a job."""
    parent, _, index = fact.job.partition("_")
    job = Job(
        id=fact.job,
        spec=fact.spec,
        submitted_s=now_s,
        order=state.next_order,
        blocked_by=set(fact.blocked_by),
    )
    state.jobs[job.id] = state.active[job.id] = job
    state.next_order += 1
    if job.spec.is_limited:
        state.watched[job.id] = job
    if job.spec.is_picky:
        state.picky.add(job.id)
    if job.clings:
        state.clinging.add(job.id)
    state.next_job = max(state.next_job, int(parent) + 1)
    if index:
        state.arrays.setdefault(parent, []).append(job.id)
    for other in fact.blocked_by:
        state.dependents.setdefault(other, []).append(job.id)
    if fact.key:
        state.requests.setdefault(fact.key, Request(fact.digest, [], now_s)).jobs.append(job.id)
    state.stale = True


def jobs_forgotten(state: SchedulerState, now_s: float, fact: f.JobsForgotten) -> None:
    """Drop jobs and keys. An array is dropped with its last job."""
    arrays: dict[str, set[str]] = {}
    for name in fact.jobs:
        del state.jobs[name]
        parent, _, index = name.partition("_")
        if index:
            arrays.setdefault(parent, set()).add(name)
    for parent, members in arrays.items():
        left = [name for name in state.arrays[parent] if name not in members]
        if left:
            state.arrays[parent] = left
        else:
            del state.arrays[parent]
    for key in fact.keys:
        del state.requests[key]
    if fact.job_types:
        state.rates.forget(fact.job_types)


def job_moved(state: SchedulerState, now_s: float, fact: f.JobMoved) -> None:
    """Change the state of a job."""
    move(state, now_s, state.jobs[fact.job], fact.move, fact.why)


def move(state: SchedulerState, now_s: float, job: Job, how: Move, why: str) -> None:
    """Change the state of a job as the table of transitions says."""
    job.state = after(job.state, how)
    job.why = why
    if how is START or how is PREEMPT:
        # Taking turns is what an allocation is for; it calls for no new one.
        return
    state.stale = True
    if how in _ANEW:
        job.unstarted, job.failed_on, job.pauses, job.again_s = 0, (), 0, 0.0
    if job.state is JobState.HELD:
        state.on_hold.add(job.id)
    else:
        state.on_hold.discard(job.id)
    if job.state in TERMINAL:
        job.ended_s = now_s
        del state.active[job.id]
        state.watched.pop(job.id, None)
        state.picky.discard(job.id)
        state.clinging.discard(job.id)
        state.saved.discard(job.id)
        _open_gates(state, job)


# Moves by which a user shows that the cause of earlier failures has been dealt with.
_ANEW = frozenset({Move.RELEASE, Move.REQUEUE})


def checkpoint_saved(state: SchedulerState, now_s: float, fact: f.CheckpointSaved) -> None:
    """Record that a job's newest checkpoint is in another store than the one before."""
    job = state.jobs[fact.job]
    job.checkpoint_at = fact.place
    at = state.saves_at(job)
    job.checkpoint_beside = at[1:] if at[:1] == (fact.place,) else ()
    if not job.is_terminal:
        state.saved.add(job.id)
        if len(state.places) > 1:
            # There may be fewer ways to run the job now.
            state.stale = True


def _open_gates(state: SchedulerState, job: Job) -> None:
    """Unblock jobs that waited for this job to end, and those that waited for it to succeed if it did."""
    for name in state.dependents.pop(job.id, ()):
        other = state.jobs[name]
        if other.is_terminal:
            # A job that has ended stays as it is.
            continue
        if job.state == JobState.COMPLETED or _content_with_end(other, job.id):
            other.blocked_by.discard(job.id)
            state.stale = True


def _content_with_end(job: Job, other: str) -> bool:
    parent = other.partition("_")[0]
    return all(d.when == "ended" for d in job.spec.after if d.job in (other, parent))
