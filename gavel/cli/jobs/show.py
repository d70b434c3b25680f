"""`gavel show`: all about a job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.text import Text

from gavel.cli.io.job_text import few, job_on, job_progress, job_ran_s, state_text, why_words
from gavel.cli.io.session import job_id, members, print_line, scheduler
from gavel.cli.io.tables import out
from gavel.cli.io.units import age, ago, short_number, span
from gavel.cli.io.wording import count_of, printable
from gavel.client import Job, JobState
from gavel.client.jobs.fields import FIELDS
from gavel.client.reading import plain

KEY_CHARS = 14
UNSAID = {
    "weight": 1.0,
    "preemptible": True,
    "packable": True,
    "reports_steps": True,
}  # what holds without a word


def show(jobs: tuple[str, ...], as_json: bool, address: str | None, context: str | None) -> None:
    """The command's body."""
    with scheduler(address, context) as client:
        for at, name in enumerate(jobs):
            for number, job in enumerate(members(client, job_id(client, name))):
                if as_json:
                    print_line(job)
                    continue
                if at or number:
                    click.echo()
                console = out()
                for line in lines(job, datetime.now(UTC)):
                    console.print(line)


def lines(job: Job, now: datetime) -> Iterator[Text]:
    """For people."""
    title = Text(f"job {job.id}", style="bold")
    if job.spec.name:
        title.append(f" '{printable(job.spec.name)}'")
    title.append(" ").append_text(state_text(job.state))
    if job.why:
        title.append(f" ({printable(why_words(job))})", style="")
    yield title
    for key, value in _happened(job, now):
        yield Text(f"  {key.ljust(KEY_CHARS)}  {value}")
    yield Text()
    for key, value in _asked(job):
        yield Text(f"  {key.ljust(KEY_CHARS)}  {value}")
    if job.last_lines:
        yield Text()
        yield Text("  last lines of the attempt that failed:")
        for line in job.last_lines.splitlines():
            yield Text(f"    {printable(line)}", style="dim")


def _until(end: datetime | None, now: datetime) -> str:
    """`in 12m`; `now` at the end of a round, when its leases are being renewed."""
    return "now" if end and abs((end - now).total_seconds()) < 1 else ago(end, now)


def _happened(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    place = job.placement
    if place is not None:
        shared = f", shared with job {place.with_job}" if place.with_job else ""
        yield "on", f"{job_on(job)}: {printable(few(place.gpus, 16))} ({place.phase}{shared})"
        yield "lease", f"{place.lease}, since {age(place.since, now)}, until {_until(place.until, now)}"
        if place.rate:
            yield "rate", f"{short_number(place.rate)} steps/s"
    if job.blocked_by:
        yield "waits for", few(job.blocked_by, 16)
    if done := _done(job):
        yield "done", done
    yield "submitted", f"{_time(job.submitted)} by {printable(job.spec.user)} ({ago(job.submitted, now)})"
    if job.spec.deadline_s is not None and job.submitted:
        yield "due", _due(job, job.submitted + timedelta(seconds=job.spec.deadline_s), now)
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
        kinds = ", ".join(f"{printable(kind)} {span(length)}" for kind, length in sorted(time_s.items()))
        yield "ran", f"{span(run_s)}{f' ({kinds})' if kinds else ''}"
    if job.nodes:
        yield "ran on", printable(few(job.nodes, 16))
    if job.cost:
        yield "cost", f"{job.cost:,.2f}"
    if job.exit_code is not None:
        yield "exit code", str(job.exit_code)


def _done(job: Job) -> str:
    """How far it is: `37% (37 of 100 steps, 30 saved)`, or `37 steps, 30 saved` where nobody knows of how many."""
    part = job_progress(job)
    saved = f"{job.steps_saved:,.0f} saved"
    if job.progress is None:
        return f"{job.steps_done:,.0f} steps, {saved}" if job.steps_done else ""
    if job.state.is_final and not job.steps_done:  # it may never have told its steps
        return part
    of = f" of {job.spec.steps:,.0f}" if job.spec.steps else ""
    return f"{part} ({job.steps_done:,.0f}{of} steps, {saved})"


def _ran(job: Job, now: datetime) -> tuple[float, dict[str, float]]:
    """How long it ran over all attempts, and on which worker types; the present attempt counts up to now."""
    run_s, time_s = job_ran_s(job, now), dict(job.time_s)
    if job.placement is not None and run_s > job.run_s:
        kind = job.placement.worker_type
        time_s[kind] = time_s.get(kind, 0.0) + run_s - job.run_s
    return run_s, time_s


def _due(job: Job, due: datetime, now: datetime) -> str:
    """When its deadline is, and whether it is missed, or will be if it runs on as it does."""
    verdict = ""
    if job.state is JobState.COMPLETED and job.ended:
        late = job.ended > due
        verdict = f", missed by {span((job.ended - due).total_seconds())}" if late else ", kept"
    elif job.state.is_final or now > due:
        verdict = ", missed"
    elif job.placement and job.placement.rate and job.spec.steps:
        left_s = (job.spec.steps - job.steps_done) / job.placement.rate
        late = now + timedelta(seconds=left_s) > due
        verdict = f", and at its rate it takes {span(left_s)} more" if late else ""
    return f"{_time(due)} ({ago(due, now)}{verdict})"


def _asked(job: Job) -> Iterator[tuple[str, str]]:
    """What was said at submission, in the words of the job file."""
    spec = job.spec
    for field in FIELDS:
        if field.name in ("name", "user", "upload"):
            continue
        value: Any = job_on_asked(job) if field.name == "gpus" else getattr(spec, field.target)
        if (not value and value is not False) or value == UNSAID.get(field.name):
            continue
        if field.name == "command":
            yield "command", printable(" ".join(_quoted(part) for part in spec.command))
        elif field.target.endswith("_s"):
            yield field.name, span(value)
        elif field.target.endswith("_gb"):
            yield field.name, f"{value:g} GB"
        elif isinstance(value, str) and "\n" in value:
            yield field.name, printable(" ⏎ ".join(value.strip().splitlines()))[:200]
        else:
            yield field.name, printable(_plain_words(plain(value)))
    if spec.package:
        yield "package", spec.package


def job_on_asked(job: Job) -> str:
    """`4`, or `2-8`."""
    least, most = job.spec.gpus_min, job.spec.gpus_max
    return f"{least}-{most}" if least and most and least != most else str(job.spec.gpus or 1)


def _plain_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, list):
        shown = [f"{one['job']}:{one['when']}" if isinstance(one, dict) else str(one) for one in value]
        return few(shown, 16)
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:,g}"
        if isinstance(value, float)
        else str(value)
    )


def _quoted(part: str) -> str:
    import shlex

    return shlex.quote(part)


def _time(at: datetime | None) -> str:
    """In local time, as `--start` reads it."""
    return "" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
