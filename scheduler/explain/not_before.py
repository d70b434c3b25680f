"""Explain jobs that may not run yet: they wait for other jobs, for their earliest start, or after failed attempts."""

from __future__ import annotations

from scheduler.explain.answer import Change, Reason
from scheduler.explain.finding import NAMED_MAX, Finding
from scheduler.explain.forecast import boundary_s
from scheduler.explain.remedies import CHANGES_MAX, expected
from scheduler.explain.scene import Scene
from scheduler.explain.start import Start, after_jobs
from scheduler.explain.wording import jobs, when


def may_not_run_yet(scene: Scene) -> Finding | None:
    """Explain that a job waits for other jobs or for a point in time; return None if it does not."""
    job, now_s = scene.job, scene.now_s
    if job.blocked_by:
        return _dependency(scene)
    starts_s = job.submitted_s + job.spec.earliest_start_s
    if now_s < starts_s:
        text = f"It waits for its earliest start, {when(starts_s, now_s)}."
        change = expected("earliest_start", "its earliest start comes", starts_s, now_s)
        return Finding(Reason.EARLIEST_START, text, (), (change,), _start(scene, starts_s))
    if now_s < job.again_s:
        last = "last attempt" if job.pauses == 1 else f"last {job.pauses} attempts"
        why = f" ({job.why})" if job.why else ""
        text = f"Its {last} failed{why}: it starts again {when(job.again_s, now_s)} at the earliest."
        change = expected("retry_pause", "its pause ends", job.again_s, now_s)
        return Finding(Reason.RETRY_PAUSE, text, (), (change,), _start(scene, job.again_s))
    return None


def _dependency(scene: Scene) -> Finding:
    state, now_s = scene.state, scene.now_s
    awaited = sorted(scene.job.blocked_by, key=lambda name: state.jobs[name].order)
    first = state.jobs[awaited[0]]
    start = after_jobs(state, scene.job, now_s)
    parent = first.id.partition("_")[0]
    ended = any(d.when == "ended" and d.job in (first.id, parent) for d in scene.job.spec.after)
    text = (
        f"It waits for {jobs(awaited)} to {'end' if ended else 'succeed'}; job {first.id} is {first.state}."
    )
    changes = []
    for name in awaited[:CHANGES_MAX]:
        at_s = start.at_s if len(awaited) == 1 else None
        about = "" if at_s is None else f" ({when(at_s, now_s)})"
        changes.append(
            Change(what="job_ends", text=f"job {name} {'ends' if ended else 'succeeds'}{about}", at_s=at_s)
        )
    return Finding(Reason.DEPENDENCY, text, tuple(awaited[:NAMED_MAX]), tuple(changes), start)


def _start(scene: Scene, at_s: float) -> Start:
    """Estimate the start: at `at_s` if the job can fill idle GPUs in mid-round, else at the first boundary after it."""
    fills = scene.state.settings.fill_mid_round and any(
        column.bundle.worker_type in scene.pools and scene.room(column.bundle) >= column.bundle.gpus
        for column in scene.columns
        if column.share > 0 or column.backfill
    )
    start_s = at_s if fills else boundary_s(scene.state, scene.now_s, at_s)
    return Start(start_s, "earliest_start", "likely" if fills else "rough")
