"""Handlers of users' messages about jobs, and the review of jobs' limits and dependencies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType

import msgspec
from msgspec import UNSET

from scheduler.core import on_rounds
from scheduler.core.credit import cost_by
from scheduler.core.facts import JobMoved, JobSubmitted, JobUpdated, LeaseRecalled
from scheduler.core.messages import JobCommand, SubmitJobs, UpdateJob
from scheduler.core.outcome import Outcome
from scheduler.core.planning.feasibility import listed, must_fit_somewhere, must_have_plan
from scheduler.core.planning.kinds import rate_of
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.changes import SHAPE, JobChanges
from scheduler.model.errors import InvalidSpec, KeyReused, Refused
from scheduler.model.jobs import TERMINAL, TRANSITIONS, WAITING, Job, JobSpec, JobState, Move
from scheduler.model.lease import Phase

JOBS_PER_CALL_MAX = bounds.ARRAY_MAX
# The documents of all plans in one submission, which is one record of the journal.
DOCUMENTS_BYTES_MAX = 100_000_000
NO_PAST: Mapping[str, JobState] = MappingProxyType({})


def on_submit(out: Outcome, message: SubmitJobs) -> None:
    """Accept all jobs of a submission, or refuse it as a whole."""
    state = out.state
    try:
        _check(message)
        digest = _digest(message) if message.key else ""
        earlier = state.requests.get(message.key) if message.key else None
        if earlier is not None:
            if earlier.digest != digest:
                raise KeyReused(f"the key '{message.key}' was used for another submission")
            out.reply(message.call, jobs=list(earlier.jobs))
            return
        accepted = list(_accepted(state, message))
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    for job, spec, blocked_by in accepted:
        out.fact(JobSubmitted(job=job, spec=spec, blocked_by=blocked_by, key=message.key, digest=digest))
    out.reply(message.call, jobs=[job for job, _, _ in accepted])
    out.wants_review = True
    on_rounds.kick(out)


def _check(message: SubmitJobs) -> None:
    """Check everything about a submission that does not depend on the cluster."""
    if not message.specs:
        raise InvalidSpec("specs", "there is no job in this submission")
    bounds.check_text("user", message.user)
    bounds.check_text("key", message.key, bounds.KEY_CHARS_MAX)
    for index, spec in enumerate(message.specs):
        try:
            spec.checked()
        except InvalidSpec as error:
            raise InvalidSpec(f"{_where(message, index)}{error.field}", error.problem) from None


def _where(message: SubmitJobs, index: int) -> str:
    return f"specs[{index}]." if len(message.specs) > 1 else ""


def _digest(message: SubmitJobs) -> str:
    """Return the digest of a request, which is the same in every release."""
    # The first releases held a launch as a map, so every release encodes it as a map.
    specs = [
        msgspec.structs.replace(spec, launch=spec.launch and msgspec.to_builtins(spec.launch))
        for spec in message.specs
    ]
    return hashlib.sha256(msgspec.json.encode([message.user, specs], order="deterministic")).hexdigest()


def _accepted(state: SchedulerState, message: SubmitJobs) -> Iterator[tuple[str, JobSpec, tuple[str, ...]]]:
    """Yield the id, the spec and the unmet dependencies of each job; raise if any job is refused."""
    number, count, documents_bytes = state.next_job, 0, 0
    for position, submitted in enumerate(message.specs):
        where = _where(message, position)
        try:
            spec, blocked_by = submitted, _would_wait_for(state, submitted, message.past)
        except InvalidSpec as error:
            raise InvalidSpec(f"{where}{error.field}", error.problem) from None
        count += max(len(spec.array), 1)
        if count > JOBS_PER_CALL_MAX:
            raise InvalidSpec(f"{where}array", f"more than {JOBS_PER_CALL_MAX:,} jobs in one submission")
        documents_bytes += max(len(spec.array), 1) * sum(plan.size_bytes for plan in spec.plans)
        if documents_bytes > DOCUMENTS_BYTES_MAX:
            raise InvalidSpec(
                f"{where}plans",
                f"have more than {DOCUMENTS_BYTES_MAX // 10**6} MB of documents in one submission, once for each job",
            )
        if message.user and not spec.user:
            spec = msgspec.structs.replace(spec, user=message.user)
        if not spec.array:
            yield str(number), spec, blocked_by
        # Each job of the array gets only its own index, because n jobs with n indices each would hold n² numbers.
        for index in spec.array:
            yield f"{number}_{index}", msgspec.structs.replace(spec, array=(index,)), blocked_by
        number += 1


def would_wait_for(
    state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState] = NO_PAST
) -> tuple[str, ...]:
    """Return the jobs that this job would wait for if it were submitted now; raise if it would be refused."""
    return _would_wait_for(state, spec.checked(), past)


def _would_wait_for(state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState]) -> tuple[str, ...]:
    must_be_runnable(state, spec)
    return _blocked_by(state, spec, past)


def must_be_runnable(state: SchedulerState, spec: JobSpec) -> None:
    """Raise InvalidSpec for a job that can never run. A cluster without nodes accepts every job."""
    if not state.nodes:
        return
    must_fit_somewhere(state, spec)
    if spec.plans:
        must_have_plan(state, spec)
    else:
        _must_have_rate(state, spec)


def _must_have_rate(state: SchedulerState, spec: JobSpec) -> None:
    """Raise InvalidSpec for a job whose rates are 0 on every worker type that it may use, at every width."""
    if any(spec.may_use(kind) and _runs(state, spec, kind) for kind in state.size_of_type):
        return
    types = sorted(state.size_of_type)
    allowed = [kind for kind in types if spec.may_use(kind)]
    where = listed(allowed)
    name = f"jobs of type '{spec.job_type}'" if spec.job_type else "this job"
    if spec.rates:
        rated = listed(sorted(spec.rates))
        raise InvalidSpec("rates", f"are given for {rated}, and this job may run on {where} only")
    other_types = [kind for kind in types if kind not in allowed and _runs(state, spec, kind)]
    if other_types:
        field = "worker_types" if spec.worker_types else "excluded_worker_types"
        raise InvalidSpec(
            field, f"{name} cannot run on {where} (the rates say 0); allow {listed(other_types)}"
        )
    widths = sorted(
        gpus
        for (kind, gpus, worker_type), rate in state.rates.solo.items()
        if kind == spec.job_type and worker_type in allowed and rate > 0
    )
    widths_asked = f"{spec.narrowest} to {spec.widest}" if spec.narrowest < spec.widest else str(spec.gpus)
    if widths:
        known = listed([str(gpus) for gpus in dict.fromkeys(widths)])
        raise InvalidSpec("gpus", f"{name} cannot run with {widths_asked} GPUs on {where}; ask for {known}")
    raise InvalidSpec(
        "job_type", f"{name} cannot run on {where}: the rates say 0; give rates above 0, or another job_type"
    )


def _runs(state: SchedulerState, spec: JobSpec, worker_type: str) -> bool:
    widths = spec.widths(state.size_of_type[worker_type])
    return any(rate_of(state, spec, worker_type, gpus)[0] > 0 for gpus in widths)


def _blocked_by(state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState]) -> tuple[str, ...]:
    blocked: dict[str, None] = {}
    for dependency in spec.after:
        # The final state, if the job or some jobs of the array have been forgotten.
        forgotten = past.get(dependency.job)
        members = state.arrays.get(dependency.job) or ([] if forgotten else [dependency.job])
        states = {name: job.state for name in members if (job := state.jobs.get(name)) is not None}
        if len(states) < len(members):
            name = next(name for name in members if name not in states)
            rest = "" if name.replace("_", "").isdigit() else "; it takes ids of jobs"
            raise InvalidSpec("after", f"there is no job '{name}'{rest}")
        if forgotten:
            states[dependency.job] = forgotten
        for name, job_state in states.items():
            if job_state not in TERMINAL:
                blocked[name] = None
            elif dependency.when == "succeeded" and job_state != JobState.COMPLETED:
                raise InvalidSpec("after", f"job '{name}' is {job_state} and can no longer succeed")
    return tuple(blocked)


_DONE = {"cancel": "cancelled", "hold": "held", "release": "released", "requeue": "requeued"}
_MOVES = {"cancel": Move.CANCEL, "hold": Move.HOLD, "release": Move.RELEASE, "requeue": Move.REQUEUE}


def on_command(out: Outcome, message: JobCommand) -> None:
    """Cancel, hold, release or requeue a job, or all jobs of an array."""
    state = out.state
    try:
        move = _MOVES.get(message.action)
        if move is None:
            raise InvalidSpec(
                "action", f"is {bounds.readable(message.action)}, must be one of {listed([*_MOVES])}"
            )
        bounds.check_text("user", message.user)
        members = state.arrays.get(message.job)
        jobs = [state.jobs[name] for name in members] if members else [state.job(message.job)]
        if members:
            jobs = [job for job in jobs if not job.is_terminal]
            if not jobs:
                raise Refused(f"all jobs of array '{message.job}' have ended")
        for job in jobs:
            if (job.state, move) not in TRANSITIONS:
                raise Refused(f"job {job.id} {_why_not(job, message.action)}")
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    why = f"{message.action} by {message.user}" if message.user else message.action
    for job in jobs:
        lease = job.lease
        out.fact(JobMoved(job=job.id, move=move, why=why, by=message.user))
        if lease is not None and move != Move.RELEASE:
            recall(out, lease, _DONE[message.action] + (f" by {message.user}" if message.user else ""))
    out.reply(message.call, jobs=[job.id for job in jobs])
    out.wants_review = True
    on_rounds.kick(out)


def _why_not(job: Job, action: str) -> str:
    """Return why this command does not apply to a job in its state."""
    done = _DONE[action]
    if done == job.state or (action == "requeue" and job.state in WAITING):
        return f"is {job.state} already"
    if action == "release" and not job.is_terminal:
        return f"is {job.state}; only held jobs can be released"
    return f"is {job.state} and cannot be {done}"


def on_update(out: Outcome, message: UpdateJob) -> None:
    """Change fields of a job, or of all unfinished jobs of an array; change all of them or none."""
    state = out.state
    try:
        bounds.check_text("user", message.user)
        if not message.changes.values():
            raise InvalidSpec("changes", "are empty: give at least one field")
        updates = [(job, _changes_of(state, job, message.changes)) for job in _unfinished(state, message.job)]
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    out.reply(message.call, jobs=[job.id for job, _ in updates])
    # A repeated update changes nothing.
    updates = [(job, changes) for job, changes in updates if changes.values()]
    for job, changes in updates:
        out.fact(JobUpdated(job=job.id, changes=changes, by=message.user))
    if updates:
        out.wants_review = True
        on_rounds.kick(out)


def _unfinished(state: SchedulerState, name: str) -> list[Job]:
    members = state.arrays.get(name)
    if not members:
        job = state.job(name)
        if job.is_terminal:
            raise Refused(f"job {name} is {job.state} and can no longer be changed")
        return [job]
    jobs = [state.jobs[member] for member in members if not state.jobs[member].is_terminal]
    if not jobs:
        raise Refused(f"all jobs of array '{name}' have ended")
    return jobs


def _changes_of(state: SchedulerState, job: Job, changes: JobChanges) -> JobChanges:
    """Return what really changes for this job; raise if the job cannot be changed like that."""
    changes = changes.differing_from(job.spec)
    spec = changes.applied_to(job.spec).checked()
    if changes.changes_shape:
        if job.state is JobState.RUNNING:
            field = next(name for name in SHAPE if getattr(changes, name) is not UNSET)
            raise Refused(
                f"job {job.id} is running, and its {field} cannot change meanwhile: hold it, update it, release it"
            )
        must_be_runnable(state, spec)
    return changes


def recall(out: Outcome, lease: str, why: str) -> None:
    """End a lease before its round ends."""
    holding = out.state.leases[lease]
    if holding.phase == Phase.STOPPING:
        return
    out.resend_for(holding)
    out.fact(LeaseRecalled(lease=lease, why=why, untold=lease in out.untold))
    out.leases_stop = True


def review(out: Outcome) -> None:
    """Fail jobs that reached a limit or whose dependencies cannot be met, and set a timer for the next review."""
    state, now_s = out.state, out.now_s
    any_failed = True
    # A job that fails can make others fail.
    while any_failed:
        any_failed = False
        for job in sorted(state.to_review.values(), key=attrgetter("order")):
            why = _failed_dependency(state, job) or _over_limit(state, job, now_s)
            if why and not job.is_terminal:
                any_failed = True
                fail(out, job, why)
    times = [at_s for job in state.to_review.values() for at_s in _review_times_s(state, job, now_s)]
    if times:
        out.wake(min(times), "review")


def _review_times_s(state: SchedulerState, job: Job, now_s: float) -> Iterator[float]:
    """Yield the future times at which the job may start, or reaches a limit if it keeps running."""
    starts_s = job.submitted_s + job.spec.earliest_start_s
    if starts_s > now_s:
        yield starts_s
    if job.again_s > now_s:
        yield job.again_s
    left_s = _time_left_s(state, job, now_s)
    if left_s is not None:
        yield now_s + left_s
    paid, per_s = _spent(state, job, now_s)
    if job.spec.max_cost is not None:
        left = max(job.spec.max_cost - paid, 0.0)
        # If the price is near zero, the limit is never reached.
        if left < per_s * bounds.TIME_S.most:
            yield now_s + left / per_s


def fail(out: Outcome, job: Job, why: str) -> None:
    """Fail a job. If the job has a lease, end that lease."""
    give_up(out, job, Move.FAIL, why)


def give_up(out: Outcome, job: Job, move: Move, why: str) -> None:
    """Move a job to a state in which it does not run. If the job has a lease, end that lease."""
    lease = job.lease
    out.fact(JobMoved(job=job.id, move=move, why=why))
    if lease is not None:
        recall(out, lease, why)


def _failed_dependency(state: SchedulerState, job: Job) -> str:
    """Describe a dependency of the job that can no longer be met; empty if there is none."""
    for name in sorted(job.blocked_by):
        other = state.jobs[name]
        if not other.is_terminal:
            continue
        called = f" ({other.spec.name})" if other.spec.name else ""
        ended = "failed" if other.state == JobState.FAILED else "was cancelled"
        return f"job {name}{called}, which it depends on, {ended}"
    return ""


def _time_left_s(state: SchedulerState, job: Job, now_s: float) -> float | None:
    """Return how long a running job may keep running; None if it has no time limit or does not run."""
    if job.spec.time_limit_s is None:
        return None
    holding = state.leases.get(job.lease or "")
    if holding is None or holding.started_s is None:
        return None
    return max(job.spec.time_limit_s - job.run_s - (now_s - holding.started_s), 0.0)


def _over_limit(state: SchedulerState, job: Job, now_s: float) -> str:
    spec = job.spec
    left_s = _time_left_s(state, job, now_s)
    if left_s is None and spec.time_limit_s is not None:
        left_s = spec.time_limit_s - job.run_s
    if left_s is not None and left_s <= 1e-6:
        return f"it reached its time limit of {spec.time_limit_s:g} s"
    paid = _spent(state, job, now_s)[0]
    if spec.max_cost is not None and paid >= spec.max_cost - 1e-9:
        return f"it has cost {paid:.4g}; its limit is {spec.max_cost:g}"
    return ""


def _spent(state: SchedulerState, job: Job, now_s: float) -> tuple[float, float]:
    """Return the cost of a job up to now, including its current leases, and its current cost per second."""
    paid, per_s = job.cost_usd, 0.0
    for name in (job.lease, job.leaving):
        holding = state.leases.get(name or "")
        if holding is not None:
            cost_usd, more_per_s = cost_by(state, holding, now_s)
            paid, per_s = paid + cost_usd, per_s + more_per_s
    return paid, per_s
