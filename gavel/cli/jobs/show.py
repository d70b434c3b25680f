"""`gavel show`: all about a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.job_text import few, gpus_requested, job_on, job_progress, job_ran_s, state_text, why_words
from gavel.cli.io.options import JOBS
from gavel.cli.io.session import LIVE, Session, job_id, members, print_line
from gavel.cli.io.tables import print_lines, words
from gavel.cli.io.units import age, ago, short_number, span
from gavel.cli.io.wording import count_of

if TYPE_CHECKING:
    from rich.text import Text

    from gavel.client import Job

KEY_CHARS = 14
# Fields that are shown only if they differ from these values.
DEFAULTS = {"weight": 1.0, "preemptible": True, "packable": True, "reports_steps": True}


@click.command()
@JOBS
@LIVE
def show(jobs: tuple[str, ...], session: Session) -> None:
    """Show everything about jobs: their description and their history. --json: one object per line."""
    with session.client() as client:
        separator = False
        for name in jobs:
            for job in members(client, job_id(client, name)):
                if session.as_json:
                    print_line(job)
                    continue
                if separator:
                    click.echo()
                separator = True
                print_lines(lines(job, datetime.now(UTC)))


def lines(job: Job, now: datetime) -> Iterator[Text]:
    """Return the lines that describe a job."""
    name = f" '{job.spec.name}'" if job.spec.name else ""
    title = words(f"job {job.id}{name} ", "bold").append_text(state_text(job.state))
    if job.why:
        title.append_text(words(f" ({why_words(job)})"))
    yield title
    for key, value in _history(job, now):
        yield words(f"  {key.ljust(KEY_CHARS)}  {value}")
    yield words("")
    for key, value in _request(job):
        yield words(f"  {key.ljust(KEY_CHARS)}  {value}")
    if job.last_lines:
        yield words("")
        yield words("  last lines of the attempt that failed:")
        for line in job.last_lines.splitlines():
            yield words(f"    {line}", "dim")


def _until(end: datetime | None, now: datetime) -> str:
    # At the end of a round the scheduler is renewing its leases.
    return "now" if end and abs((end - now).total_seconds()) < 1 else ago(end, now)


def _history(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    placement = job.placement
    if placement is not None:
        shared = f", shared with job {placement.with_job}" if placement.with_job else ""
        yield "on", f"{job_on(job)}: {few(placement.gpus, 16)} ({placement.phase}{shared})"
        until = _until(placement.until, now)
        yield "lease", f"{placement.lease}, since {age(placement.since, now)}, until {until}"
        if placement.rate:
            yield "rate", f"{short_number(placement.rate)} steps/s"
    if job.blocked_by:
        yield "waits for", few(job.blocked_by, 16)
    if done := _done(job):
        yield "done", done
    yield "submitted", f"{_time(job.submitted)} by {job.spec.user} ({ago(job.submitted, now)})"
    if job.spec.deadline_s is not None and job.submitted:
        yield "due", _deadline(job, job.submitted + timedelta(seconds=job.spec.deadline_s), now)
    if job.started:
        yield "started", f"{_time(job.started)} ({ago(job.started, now)})"
    if job.ended:
        yield "ended", f"{_time(job.ended)} ({ago(job.ended, now)})"
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
    return f"{_time(deadline)} ({ago(deadline, now)}{verdict})"


def _request(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the description that was submitted, with the field names of job files."""
    from gavel.client.jobs.spec import FIELDS

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
    if spec.package:
        yield "package", spec.package


def _in_words(value: Any) -> str:
    from gavel.client import After

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, After):
        return f"{value.job}:{value.when}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    if isinstance(value, (list, tuple)):
        return few([_in_words(entry) for entry in value], 16)
    return str(value)


def _time(moment: datetime | None) -> str:
    """Return a time in the local zone, in the format of `--start`."""
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
