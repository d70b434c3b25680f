"""Explain jobs. This module explains jobs that have ended, are held, or have GPUs; `waiting` explains waiting jobs."""

from __future__ import annotations

from scheduler.core.planning.pairing import packed_rate
from scheduler.core.planning.round_inputs import kept_until_s
from scheduler.core.state import SchedulerState
from scheduler.explain import remedies
from scheduler.explain.answer import Change, Explanation, Reason
from scheduler.explain.finding import Finding, due_and_received
from scheduler.explain.forecast import done_s, ends_s
from scheduler.explain.plans import about_plans
from scheduler.explain.scene import Column, Scene, rate_in, release_s
from scheduler.explain.start import Start, after_leases
from scheduler.explain.updates import updates_of
from scheduler.explain.waiting import why_it_waits
from scheduler.explain.wording import jobs, listed, span, when
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import WAITING, Job, JobState
from scheduler.model.lease import Holding, Phase, nodes_of


def explain(state: SchedulerState, job_id: str, now_s: float | None = None) -> Explanation:
    """Explain why a job waits, why it runs where it does, or how it ended; raise NotFound if there is no such job."""
    job = state.job(job_id)
    now_s = state.now_s if now_s is None else max(now_s, state.now_s)
    scene = None
    if job.is_terminal:
        finding = _ended(state, job, now_s)
    elif job.state == JobState.HELD:
        finding = _held(job)
    else:
        scene = Scene(state, job, now_s)
        finding = why_it_waits(scene) if job.state in WAITING else _leased(scene)
    start = finding.start
    return Explanation(
        job=job.id,
        state=job.state,
        at_s=now_s,
        reason=finding.reason,
        text=finding.text + about_plans(state, job, scene) + _deadline(state, job, now_s, scene),
        others=finding.others,
        evidence=() if scene is None else scene.evidence(),
        ways=0 if scene is None else len(scene.columns),
        would_change=finding.would_change,
        expected_start_s=start.at_s,
        start_basis=start.basis,
        start_sure=start.sure,
        updates=updates_of(job),
        last_lines=job.last_lines if finding.reason in (Reason.FAILED, Reason.RETRY_PAUSE) else "",
    )


def _deadline(state: SchedulerState, job: Job, now_s: float, scene: Scene | None) -> str:
    """Describe whether the job meets its deadline; empty if it has none."""
    if job.spec.deadline_s is None or job.state in (JobState.FAILED, JobState.CANCELLED):
        return ""
    due_s = job.submitted_s + job.spec.deadline_s
    if job.ended_s is not None:
        early_s = due_s - job.ended_s
        if early_s >= 0:
            return f" It met its deadline, with {span(early_s)} to spare."
        return f" It missed its deadline by {span(-early_s)}."
    if due_s <= now_s:
        return f" Its deadline passed {span(now_s - due_s)} ago."
    text = f" Its deadline is in {span(due_s - now_s)}"
    done = done_s(state, job, now_s)
    if done is not None:
        late = f", but with its share of time it will be done {when(done, now_s)}" if done > due_s else ""
        return f"{text}{late}."
    best = max((column.rate for column in scene.columns), default=0.0) if scene is not None else 0.0
    alone_s = job.steps_left / best if best > 0 and job.spec.steps is not None else 0.0
    return (
        f"{text}, but even without pauses it would take {span(alone_s)}."
        if now_s + alone_s > due_s
        else f"{text}."
    )


def _ended(state: SchedulerState, job: Job, now_s: float) -> Finding:
    ago = span(now_s - (job.ended_s or 0.0))
    ran = "it never ran"
    if job.run_s > 0 or job.started_s is not None:
        ran = f"it ran for {span(job.run_s)} on attempt {job.attempt}"
    tail = "; its processes are still being stopped" if job.leaving is not None else ""
    if job.state == JobState.COMPLETED:
        took = span((job.ended_s or 0.0) - job.submitted_s)
        return Finding(Reason.COMPLETED, f"It completed {ago} ago, {took} after its submission; {ran}{tail}.")
    if job.state == JobState.FAILED:
        others = tuple(
            name for name in sorted(job.blocked_by) if name in state.jobs and state.jobs[name].is_terminal
        )
        retried = (
            "" if job.spec.retries or not job.failures else "; with `retries` it is retried automatically"
        )
        again = Change(what="submit_again", text=f"correct the cause and submit it again{retried}")
        if others:
            first = f"see why {jobs(others)} did not succeed (`gavel explain {others[0]}`)"
            again = Change(what="submit_again", text=f"{first}, then submit both again")
        text = f"It failed {ago} ago: {job.why or 'the cause is unknown'}. In all, {ran}{tail}."
        return Finding(Reason.FAILED, text, others, (again,))
    again = Change(what="submit_again", text="submit it again")
    by = _by(job)
    return Finding(Reason.CANCELLED, f"It was cancelled{by} {ago} ago; {ran}{tail}.", (), (again,))


def _by(job: Job) -> str:
    """Return ` by USER` if a command of that user brought the job into its state, otherwise an empty string."""
    command, by, user = job.why.partition(" by ")
    return f" by {user}" if by and command in ("cancel", "hold") else ""


def _held(job: Job) -> Finding:
    release = Change(what="release", text=f"release it with `gavel release {job.id}`")
    tail = " It is still giving up its GPUs." if job.leaving is not None else ""
    blocked = tuple(sorted(job.blocked_by))
    if blocked:
        tail += f" Once released, it waits for {jobs(blocked)}."
    by = _by(job)
    why = f": {job.why}" if job.why not in ("", "hold") and not by else ""
    text = f"It is held{by} until it is released{why}.{tail}"
    return Finding(Reason.HELD, text, blocked, (release,))


def _leased(scene: Scene) -> Finding:
    state, job = scene.state, scene.job
    holding = state.leases.get(job.lease or job.leaving or "")
    assert holding is not None, "a running job has a lease, or is giving one up"
    if holding.phase == Phase.STOPPING:
        return _stopping(scene, holding)
    if holding.phase == Phase.WAITING:
        return _waits_for_leases(scene, holding)
    if holding.phase == Phase.SENT and holding.started_s is None:
        text = f"It has {_place(holding)} and is being started there."
        return Finding(Reason.STARTING, text, start=Start(scene.now_s, "lease_granted", "likely"))
    return _running(scene, holding)


def _stopping(scene: Scene, holding: Holding) -> Finding:
    state, now_s = scene.state, scene.now_s
    nodes = nodes_of(holding.lease.gpus)
    unreachable = [name for name in nodes if state.nodes[name].state in (NodeState.SILENT, NodeState.LOST)]
    if unreachable:
        lapse_s = now_s if holding.stop_by_s is None else holding.stop_by_s
        text = (
            f"Node {listed(unreachable)} cannot be reached. Unless it comes back first, the lease lapses "
            f"{when(lapse_s, now_s)}; then the job continues elsewhere, from its last checkpoint."
        )
        return Finding(Reason.NODE_SILENT, text, (), remedies.nodes_back(state, unreachable))
    text = (
        f"It gives up its {_place(holding)} ({holding.why or 'its turn is over'}): "
        f"it has to be gone {when(release_s(state, holding, now_s), now_s)}."
    )
    return Finding(Reason.STOPPING, text)


def _waits_for_leases(scene: Scene, holding: Holding) -> Finding:
    state, now_s = scene.state, scene.now_s
    start = after_leases(state, holding, now_s)
    ending = [state.leases[name] for name in sorted(holding.waits_for, key=int)]
    others = tuple(dict.fromkeys(h.lease.job for h in ending if h.lease.job != scene.job.id))
    awaited = [f"{jobs(others)} to give up {'its' if len(others) == 1 else 'their'} GPUs"] if others else []
    if any(h.lease.job == scene.job.id for h in ending):
        awaited.append("its own last run to stop")
    due = when(now_s if start.at_s is None else start.at_s, now_s)
    text = f"It has been given {_place(holding)}, and waits for {' and '.join(awaited)} ({due})."
    unreachable = sorted(
        {
            name
            for h in ending
            for name in nodes_of(h.lease.gpus)
            if name in state.nodes and state.nodes[name].state == NodeState.SILENT
        }
    )
    if unreachable:
        text += f" Node {listed(unreachable)} cannot be reached, so this may take until the lease there has lapsed."
    changes = tuple(
        remedies.expected("exit", f"job {h.lease.job} exits", release_s(state, h, now_s), now_s)
        for h in ending[: remedies.CHANGES_MAX]
    )
    return Finding(Reason.GPUS_STILL_BUSY, text, others, changes, start)


def _rate_beside(state: SchedulerState, job: Job, holding: Holding) -> str:
    """Describe the rate of a packed job, and where it comes from."""
    beside = packed_rate(state, holding.bundle, job.id)
    if beside is None:
        return ""
    source = {"table": "from the throughput table", "measured": "measured"}.get(
        beside.source, f"estimated from similar pairs, give or take {beside.sd:.3g}"
    )
    return f"; beside the other job it makes {beside.rate:.3g} steps/s ({source})"


def _running(scene: Scene, holding: Holding) -> Finding:
    state, job, now_s = scene.state, scene.job, scene.now_s
    column = _current(scene, holding)
    _, guessed = rate_in(state, job, holding.bundle, scene.pools)
    partner = [name for name in holding.bundle.jobs if name != job.id]
    since_s = holding.granted_s if holding.started_s is None else holding.started_s
    where = f"It runs on {_place(holding)}" + (f", packed with {jobs(partner)}" if partner else "")
    where += f", since {span(now_s - since_s)}"
    if column is None or column.share <= 0:
        reason = Reason.RUNNING_BACKFILL
        why = "these GPUs were due to no job, so it fills them; a job with a share can take them at the end of a round"
    else:
        reason = Reason.RUNNING
        why = due_and_received(column)
    if guessed:
        reason = Reason.EXPLORING
        why = "its speed there is a guess so far, and this measures it"
    if partner:
        why += _rate_beside(state, job, holding)
    kept_s = kept_until_s(state, holding)
    if not job.spec.preemptible:
        why += "; it cannot be preempted"
    elif kept_s > now_s and job.fruitless and not holding.stepping_s:
        left = span(kept_s - now_s)
        why += f"; an earlier turn ended before its first step, so it may keep its GPUs for up to {left} to start"
    elif kept_s > now_s and job.spec.min_run_s > 0:
        why += f"; it keeps its GPUs for at least {span(kept_s - now_s)} more"
    draining = [n for n in nodes_of(holding.lease.gpus) if state.nodes[n].state == NodeState.DRAINING]
    if draining:
        why += f"; node {listed(draining)} is draining, {_leaves(state, job, kept_s)}"
    idle_s = holding.idle_began_s
    if idle_s is not None:
        why += f"; its GPUs have been idle, and no step was made, for {span(now_s - idle_s)}"
    end_s = ends_s(state, job, now_s)
    tail = "" if end_s is None else f" If it keeps running, it will be done {when(end_s, now_s)}."
    changes = () if end_s is None else (remedies.expected("job_ends", "it ends", end_s, now_s),)
    return Finding(reason, f"{where}: {why}.{tail}", tuple(partner), changes)


def _leaves(state: SchedulerState, job: Job, kept_s: float) -> str:
    """Describe when a job leaves a draining node."""
    if not job.spec.preemptible:
        return "but the job stays there to its end"
    if kept_s > state.round.ends_s:
        return "so the job moves at the end of the first round after that"
    return "so the job moves at the end of the round"


def _current(scene: Scene, holding: Holding) -> Column | None:
    return next((column for column in scene.columns if column.bundle == holding.bundle), None)


def _place(holding: Holding) -> str:
    nodes = nodes_of(holding.lease.gpus)
    names = listed(nodes) if len(nodes) <= 3 else f"{nodes[0]} and {len(nodes) - 1} others"
    return (
        f"{holding.bundle.gpus} {holding.bundle.worker_type} on node{'s' if len(nodes) > 1 else ''} {names}"
    )
