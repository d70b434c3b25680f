"""Explain jobs that wait for a point in time: their earliest start, or the end of a pause after failed attempts."""

from __future__ import annotations

from scheduler.explain.answer import Reason
from scheduler.explain.finding import Finding
from scheduler.explain.forecast import boundary_s
from scheduler.explain.remedies import expected
from scheduler.explain.scene import Scene
from scheduler.explain.start import Start
from scheduler.explain.wording import when


def waits_for_its_time(scene: Scene) -> Finding | None:
    """Explain that a job waits for a point in time; return None if the job does not."""
    job, now_s = scene.job, scene.now_s
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


def _start(scene: Scene, at_s: float) -> Start:
    """Estimate the start: at `at_s` if the job can fill idle GPUs in mid-round, else at the first boundary after it."""
    fills = scene.state.settings.fill_mid_round and any(
        (pool := scene.pools.get(column.bundle.worker_type)) is not None and pool.room >= column.bundle.gpus
        for column in scene.columns
        if column.share > 0 or column.backfill
    )
    start_s = at_s if fills else boundary_s(scene.state, scene.now_s, at_s)
    return Start(start_s, "earliest_start", "likely" if fills else "rough")
