"""Handlers of users' messages about jobs, and the review of jobs' limits and dependencies."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from operator import attrgetter

import msgspec
from msgspec import UNSET

from scheduler.core import on_rounds
from scheduler.core.accounts.credit import cost_by
from scheduler.core.facts import JobMoved, JobSubmitted, JobUpdated, LeaseRecalled
from scheduler.core.messages import JobCommand, SubmitJobs, UpdateJob
from scheduler.core.outcome import Outcome
from scheduler.core.planning.admission import must_be_admitted, must_be_declared, waits_for
from scheduler.core.planning.feasibility import listed, must_be_runnable
from scheduler.core.planning.unfinished import Unfinished
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.changes import SHAPE, JobChanges
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec, KeyReused, Refused
from scheduler.model.jobs import TRANSITIONS, WAITING, Job, JobSpec, JobState, Move
from scheduler.model.lease import Phase
from scheduler.model.plans import Plan, size_of

JOBS_PER_CALL_MAX = bounds.ARRAY_MAX
# The documents of all plans in one submission or update, which is one record of the journal.
DOCUMENTS_BYTES_MAX = 100_000_000


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
        msgspec.structs.replace(_as_asked(spec), launch=spec.launch and msgspec.to_builtins(spec.launch))
        for spec in message.specs
    ]
    return hashlib.sha256(msgspec.json.encode([message.user, specs], order="deterministic")).hexdigest()


def _as_asked(spec: JobSpec) -> JobSpec:
    """Return a job without plans that its client computed, which depend on the nodes at that time."""
    if not spec.plans_from:
        return spec
    return msgspec.structs.replace(spec, plans=(), gpus=1, gpus_min=None, gpus_max=None)


def _accepted(state: SchedulerState, message: SubmitJobs) -> Iterator[tuple[str, JobSpec, tuple[str, ...]]]:
    """Yield the id, the spec and the unmet dependencies of each job; raise if any job is refused."""
    number, count, documents_bytes = state.next_job, 0, 0
    unfinished = Unfinished(state)
    for position, submitted in enumerate(message.specs):
        where, spec = _where(message, position), submitted
        if message.user and not spec.user:
            spec = msgspec.structs.replace(spec, user=message.user)
        try:
            blocked_by = waits_for(state, spec, message.past)
            unfinished.add(spec, max(len(spec.array), 1))
        except InvalidSpec as error:
            raise InvalidSpec(f"{where}{error.field}", error.problem) from None
        count += max(len(spec.array), 1)
        if count > JOBS_PER_CALL_MAX:
            raise InvalidSpec(f"{where}array", f"more than {JOBS_PER_CALL_MAX:,} jobs in one submission")
        documents_bytes += max(len(spec.array), 1) * _size_of_documents(spec.plans, spec.plans_from)
        _must_fit_a_record(f"{where}plans", documents_bytes)
        if not spec.array:
            yield str(number), spec, blocked_by
        # Each job of the array gets only its own index, because n jobs with n indices each would hold n² numbers.
        for index in spec.array:
            yield f"{number}_{index}", msgspec.structs.replace(spec, array=(index,)), blocked_by
        number += 1


def _size_of_documents(plans: tuple[Plan, ...], plans_from: str) -> int:
    """Return the size of the documents of plans, and of what the plans were computed from."""
    return sum(plan.size_bytes for plan in plans) + size_of(plans_from)


def _must_fit_a_record(field: str, documents_bytes: int) -> None:
    """Raise InvalidSpec for more documents than a record of the journal may have."""
    if documents_bytes > DOCUMENTS_BYTES_MAX:
        raise InvalidSpec(
            field, f"have more than {DOCUMENTS_BYTES_MAX // 10**6} MB of documents at once, once for each job"
        )


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
        unfinished = Unfinished(state)
        for job, changes in updates:
            if changes.tenant is not UNSET:
                unfinished.add(changes.applied_to(job.spec), before=job.spec)
        documents = [_size_of_documents(c.plans or (), c.plans_from or "") for _, c in updates]
        _must_fit_a_record("plans", sum(documents))
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
    in_use = _plan_in_use(state, job)
    if changes.plans and in_use is not None:
        changes = msgspec.structs.replace(changes, plans=_with_plan(changes.plans, in_use))
    changes = changes.differing_from(job.spec)
    spec = changes.applied_to(job.spec).checked()
    if changes.changes_shape:
        if job.state is JobState.RUNNING and not (changes.plans and _may_stay(job.spec, spec, in_use)):
            field = next(name for name in SHAPE if getattr(changes, name) is not UNSET)
            raise Refused(
                f"job {job.id} is running, and its {field} cannot change meanwhile: hold it, update it, release it"
            )
        known_types = {plan.worker_type for plan in job.spec.plans}
        must_be_runnable(
            state, spec, known_types.union(job.spec.worker_types, job.spec.excluded_worker_types)
        )
    if changes.tenant is not UNSET:
        must_be_declared(state, spec.tenant)
    if changes.changes_shape or changes.tenant is not UNSET:
        must_be_admitted(state, spec)
    return changes


def _plan_in_use(state: SchedulerState, job: Job) -> Plan | None:
    """Return the plan by which a job runs. It stays until the job stops, because its processes know no other."""
    if job.state is not JobState.RUNNING or job.lease is None:
        return None
    bundle = state.leases[job.lease].bundle
    plan = job.spec.plan_for(bundle.worker_type, bundle.gpus)
    return plan if plan is not None and plan.label == bundle.label else None


def _with_plan(plans: tuple[Plan, ...], kept: Plan) -> tuple[Plan, ...]:
    """Return the plans with this one in place of the one for the same GPUs."""
    place = (kept.worker_type, kept.gpus)
    if all((plan.worker_type, plan.gpus) != place for plan in plans):
        return (*plans, kept)
    return tuple([kept if (plan.worker_type, plan.gpus) == place else plan for plan in plans])


def _may_stay(before: JobSpec, spec: JobSpec, plan: Plan | None) -> bool:
    """Whether a job that runs by this plan may stay where it runs if its spec changes."""
    if plan is None or plan.gpus not in spec.widths(plan.gpus) or not spec.may_use(plan.worker_type):
        return False
    # Its GPUs lie together in groups of the size that was asked for before.
    place = (plan.gpus, plan.worker_type)
    return before.granule(*place) % spec.granule(*place) == 0


def recall(out: Outcome, lease: str, why: str) -> None:
    """End a lease before its round ends."""
    holding = out.state.leases[lease]
    if holding.phase == Phase.STOPPING:
        return
    out.resend_for(holding)
    out.fact(LeaseRecalled(lease=lease, why=why, untold=lease in out.untold))
    out.leases_stop = True


def recall_planned(out: Outcome, node: NodeSpec, held: Collection[str]) -> None:
    """Recall leases by plans, except those in `held`, from a node whose agent ignores plans."""
    state = out.state
    for gpu in state.gpus_of[node.name] if node.ignores_plans else ():
        for name in (*state.holders.get(gpu, ()), *state.claims.get(gpu, ())):
            if state.leases[name].bundle.label and name not in held:
                recall(out, name, f"the agent of {node.name} is too old for plans")


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
