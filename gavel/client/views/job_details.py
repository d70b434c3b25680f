"""Everything about a job, as pairs of words: its history, and the description that was submitted. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from gavel.client.jobs.spec import FIELDS, After, Container, Notify, Plan
from gavel.client.results import Job, Placement, TerminalUse
from gavel.client.results.files import FileList
from gavel.client.views.job_text import few, gpus_requested, job_on, job_progress, job_ran_s
from gavel.client.views.measured_text import measured_words
from gavel.client.views.units import age, ago, count_of, local_time, short_number, span

# Fields that are shown only if they differ from these values.
DEFAULTS = {
    "weight": 1.0,
    "gpus_together": 1,
    "preemptible": True,
    "packable": True,
    "reports_steps": True,
    "idle_ok": False,
}


def history(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield where and since when a job runs, how far it is, and what it has used so far."""
    placement = job.placement
    if placement is not None:
        shared = f", shared with job {placement.with_job}" if placement.with_job else ""
        yield "on", f"{job_on(job)}: {few(placement.gpus, 16)} ({placement.phase}{shared})"
        until = _until(placement.until, now)
        yield "lease", f"{placement.lease}, since {age(placement.since, now)}, until {until}"
        if placement.idle_since is not None:
            yield "idle", f"no GPU has been in use, and no step made, for {age(placement.idle_since, now)}"
        if placement.terminal is not None:
            yield "terminal", _terminal(job.id, placement.terminal, now)
        if placement.plan:
            yield "by plan", placement.plan
        if placement.rate:
            yield "rate", f"{short_number(placement.rate)} steps/s"
        yield from _packed(placement)
    if job.blocked_by:
        yield "waits for", few(job.blocked_by, 16)
    if done := _done(job):
        yield "done", done
    yield from measured_words(job.measured, job.spec.cpus)
    yield "submitted", f"{local_time(job.submitted)} by {job.spec.user} ({ago(job.submitted, now)})"
    if job.spec.deadline_s is not None and job.submitted:
        yield "due", _deadline(job, job.submitted + timedelta(seconds=job.spec.deadline_s), now)
    if job.started:
        yield "started", f"{local_time(job.started)} ({ago(job.started, now)})"
    if job.ended:
        yield "ended", f"{local_time(job.ended)} ({ago(job.ended, now)})"
    if job.attempt:
        parts = [count_of(job.attempt, "attempt"), count_of(job.preemptions, "preemption")]
        parts += [count_of(job.failures, "failure")] if job.failures else []
        parts += [count_of(job.node_failures, "node failure")] if job.node_failures else []
        yield "so far", ", ".join(parts)
    run_s, time_s = _ran(job, now)
    if run_s:
        kinds = ", ".join(f"{kind} {span(length)}" for kind, length in sorted(time_s.items()))
        yield "ran", f"{span(run_s)}{f' ({kinds})' if kinds else ''}"
    if job.nodes:
        yield "ran on", few(job.nodes, 16)
    if job.cost:
        yield "cost", f"{job.cost:,.2f}"
    if job.exit_code is not None:
        yield "exit code", str(job.exit_code)


def rates(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the rate of a packed job and its source, and what a job has measured about itself."""
    if job.placement is not None:
        yield from _packed(job.placement)
    yield from measured_words(job.measured, job.spec.cpus)


def places(job: Job, files: Sequence[FileList]) -> Iterator[tuple[str, str]]:
    """Yield where the files of the last attempt lie, as NODE:PATH, and until when they are kept."""
    for each in files:
        if (paths := each.places) is None:
            yield "files", f"{each.node} {each.missing}"
            continue
        until = f", until {local_time(paths.kept_until)}" if paths.kept_until else ""
        outputs_until = f", until {local_time(paths.outputs_kept_until)}" if paths.outputs_kept_until else ""
        if paths.workdir:
            yield "work directory", f"{each.node}:{paths.workdir}{until if job.spec.package else ''}"
        if job.spec.outputs and (path := paths.outputs or paths.workdir):
            yield "kept outputs", f"{each.node}:{path}{outputs_until}"
        if paths.logs:
            yield "logs", f"{each.node}:{paths.logs}{until}"
        if job.steps_saved or job.spec.checkpoint_dir:
            yield "saved to", f"{each.node}:{paths.checkpoints}"


def request(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the description that was submitted, with the field names of job files."""
    spec = job.spec
    for field in FIELDS:
        if field.name in ("name", "user", "upload"):
            continue
        value: Any = gpus_requested(job) if field.name == "gpus" else getattr(spec, field.target)
        if (not value and value is not False) or value == DEFAULTS.get(field.name):
            continue
        if field.name == "command":
            yield "command", shlex.join(spec.command)
        elif field.target.endswith("_s"):
            yield field.name, span(value)
        elif field.target.endswith("_gb"):
            yield field.name, f"{value:g} GB"
        elif isinstance(value, str) and "\n" in value:
            yield field.name, " ⏎ ".join(value.strip().splitlines())[:200]
        else:
            yield field.name, _in_words(value)
    if spec.plans_from:
        yield "plan is", "automatic: `gavel plan --refresh` computes it again"
    if spec.package:
        yield "package", spec.package


def _terminal(job: str, use: TerminalUse, now: datetime) -> str:
    kept = "a time" if use.keep_s is None else span(use.keep_s)
    if use.attached:
        return f"attached; continues for {kept} without a client"
    left = kept if use.until is None else span(max((use.until - now).total_seconds(), 0.0))
    return f"not attached; continues for {left} unless `gavel attach {job}` comes back"


def _packed(placement: Placement) -> Iterator[tuple[str, str]]:
    """Yield the rate of a packed job beside the other one, and where that rate comes from."""
    packed = placement.packed_rate
    if packed is None:
        return
    source = {"table": "from the throughput table", "measured": "measured"}.get(
        packed.source, f"estimated from similar pairs ± {short_number(packed.sd_steps_per_s)}"
    )
    yield "packed", f"{short_number(packed.steps_per_s)} steps/s beside the other job, {source}"


def _until(end: datetime | None, now: datetime) -> str:
    # At the end of a round the scheduler is renewing its leases.
    return "now" if end and abs((end - now).total_seconds()) < 1 else ago(end, now)


def _done(job: Job) -> str:
    """Return `37% (37 of 100 steps, 30 saved)`, or `37 steps, 30 saved` if the number of steps is unknown."""
    percent = job_progress(job)
    saved = f"{job.steps_saved:,.0f} saved"
    if job.progress is None:
        return f"{job.steps_done:,.0f} steps, {saved}" if job.steps_done else ""
    # The job may never have reported its steps.
    if job.state.is_final and not job.steps_done:
        return percent
    total = f" of {job.spec.steps:,.0f}" if job.spec.steps else ""
    return f"{percent} ({job.steps_done:,.0f}{total} steps, {saved})"


def _ran(job: Job, now: datetime) -> tuple[float, dict[str, float]]:
    """Return how long the job ran, in all and by worker type, over all attempts including the present one."""
    run_s, time_s = job_ran_s(job, now), dict(job.time_s)
    if job.placement is not None and run_s > job.run_s:
        kind = job.placement.worker_type
        time_s[kind] = time_s.get(kind, 0.0) + run_s - job.run_s
    return run_s, time_s


def _deadline(job: Job, deadline: datetime, now: datetime) -> str:
    """Return the deadline, and whether the job has missed it or will miss it at its present rate."""
    verdict = ""
    if job.state == "completed" and job.ended:
        late = job.ended > deadline
        verdict = f", missed by {span((job.ended - deadline).total_seconds())}" if late else ", kept"
    elif job.state.is_final or now > deadline:
        verdict = ", missed"
    elif job.placement and job.placement.rate and job.spec.steps:
        left_s = (job.spec.steps - job.steps_done) / job.placement.rate
        late = now + timedelta(seconds=left_s) > deadline
        verdict = f"; at its present rate the job needs {span(left_s)} more" if late else ""
    return f"{local_time(deadline)} ({ago(deadline, now)}{verdict})"


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, After):
        return f"{value.job}:{value.when}"
    if isinstance(value, Notify):
        return f"{value.to}:{','.join(value.on)}" if value.on else value.to
    if isinstance(value, Plan):
        return f"{value.label} ({value.gpus} × {value.worker_type}, {short_number(value.rate)} steps/s)"
    if isinstance(value, Container):
        parts = {"by": value.runtime, "mounts": value.mounts, "env": value.env}
        return " ".join([value.image, *(f"{word} {_in_words(part)}" for word, part in parts.items() if part)])
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, (list, tuple)):
        return few([_in_words(entry) for entry in value], 16)
    return str(value)
