"""Apply facts about jobs to the state."""

from __future__ import annotations

from scheduler.core import facts as f
from scheduler.core.accounts import budgets
from scheduler.core.snapshot import Request
from scheduler.core.state import SchedulerState
from scheduler.model.changes import JobChanges, Update
from scheduler.model.jobs import PREEMPT, START, TERMINAL, Job, JobState, Move, after
from scheduler.model.throughput import PlanKey

# How many updates of a job are remembered.
UPDATES_KEPT = 10


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
    state.owners[job.spec.tenant, job.spec.user] += 1
    state.index_spec(job)
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
        remaining = [name for name in state.arrays[parent] if name not in members]
        if remaining:
            state.arrays[parent] = remaining
        else:
            del state.arrays[parent]
    for key in fact.keys:
        del state.requests[key]
    if fact.job_types:
        state.rates.forget(fact.job_types)
    state.measured.forget(fact.jobs, fact.job_types)
    state.cached.forget(fact.jobs, fact.job_types)


def job_moved(state: SchedulerState, now_s: float, fact: f.JobMoved) -> None:
    """Change the state of a job."""
    move(state, now_s, state.jobs[fact.job], fact.move, fact.why)


def job_updated(state: SchedulerState, now_s: float, fact: f.JobUpdated) -> None:
    """Change the spec of a job, and remember who changed what."""
    job = state.jobs[fact.job]
    before = JobChanges(**{name: getattr(job.spec, name) for name in fact.changes.values()})
    update = Update(
        at_s=now_s,
        by=fact.by,
        changes=fact.changes.without_documents(),
        before=before.without_documents(),
    )
    job.updates = (*job.updates[1 - UPDATES_KEPT :], update)
    if "tenant" in fact.changes.values():
        # What it has used so far stays with its former tenant.
        budgets.settle_all(state, now_s)
    job.spec = fact.changes.applied_to(job.spec)
    if "tenant" in fact.changes.values():
        state.enter_quotas()
        _leave_owner(state, job, before.tenant)
        state.owners[job.spec.tenant, job.spec.user] += 1
    state.index_spec(job)
    if fact.changes.changes_shape:
        state.reshaped[job.id] = state.asked.number
    state.stale = True


def plan_struck_out(state: SchedulerState, now_s: float, fact: f.PlanStruckOut) -> None:
    """Strike out a plan for all jobs of the user and type of a job."""
    job = state.jobs[fact.job]
    own = job.spec
    state.rates.strike_out(PlanKey(own.user, own.job_type, fact.worker_type, fact.gpus, fact.label))
    job.failures = max(job.failures - 1, 0)
    for other in state.active.values():
        if other is job or (other.spec.plans and other.state is not JobState.RUNNING):
            state.reshaped[other.id] = state.asked.number
    state.stale = True


def move(state: SchedulerState, now_s: float, job: Job, how: Move, why: str) -> None:
    """Change the state of a job by the table of transitions."""
    job.state = after(job.state, how)
    job.why = why
    if how is START or how is PREEMPT:
        # Jobs take turns under one allocation, so the start or end of a turn needs no new allocation.
        return
    state.stale = True
    if how in _CLEARS_FAILURES:
        job.unstarted, job.failed_on, job.pauses, job.again_s = 0, (), 0, 0.0
    if job.state is JobState.HELD:
        state.on_hold.add(job.id)
    else:
        state.on_hold.discard(job.id)
    if job.state in TERMINAL:
        job.ended_s = now_s
        del state.active[job.id]
        _leave_owner(state, job, job.spec.tenant)
        state.to_review.pop(job.id, None)
        state.picky.discard(job.id)
        state.protectable.discard(job.id)
        state.may_have_saved.discard(job.id)
        state.reshaped.pop(job.id, None)
        _unblock_dependents(state, job)


def _leave_owner(state: SchedulerState, job: Job, tenant: object) -> None:
    owner = str(tenant), job.spec.user
    state.owners[owner] -= 1
    if not state.owners[owner]:
        del state.owners[owner]


# After these moves of a user, earlier failures no longer count.
_CLEARS_FAILURES = frozenset({Move.RELEASE, Move.REQUEUE})


def checkpoint_saved(state: SchedulerState, now_s: float, fact: f.CheckpointSaved) -> None:
    """Record that a job's newest checkpoint is in another store than the checkpoint before."""
    job = state.jobs[fact.job]
    job.checkpoint_at = fact.place
    stores = state.saves_at(job)
    job.checkpoint_beside = stores[1:] if stores[:1] == (fact.place,) else ()
    if not job.is_terminal:
        state.may_have_saved.add(job.id)
        if len(state.stores) > 1:
            # There may be fewer ways to run the job now, so a new allocation is needed.
            state.stale = True


def _unblock_dependents(state: SchedulerState, job: Job) -> None:
    """Unblock the jobs whose dependency on this job is met now that it has ended."""
    for name in state.dependents.pop(job.id, ()):
        other = state.jobs.get(name)
        if other is None or other.is_terminal:
            # A job that has ended keeps its state, and may have been forgotten.
            continue
        if job.state == JobState.COMPLETED or _needs_only_end(other, job.id):
            other.blocked_by.discard(job.id)
            state.stale = True


def _needs_only_end(job: Job, other: str) -> bool:
    """Whether it is enough for the job that the other one has ended, even without success."""
    parent = other.partition("_")[0]
    return all(d.when == "ended" for d in job.spec.after if d.job in (other, parent))
