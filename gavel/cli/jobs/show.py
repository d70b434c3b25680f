"""`gavel show`: all about a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.io.lines import Line, print_lines, words
from gavel.cli.io.options import JOBS
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, print_line
from gavel.cli.io.tables import state_text
from gavel.cli.jobs.timeline import show_timeline
from gavel.client.views.job_text import why_words

if TYPE_CHECKING:
    from gavel.client import Client, Job
    from gavel.client.results import FileList

KEY_CHARS = 14
# How long the nodes may take to return where the files of a job lie.
FILES_S = 3.0


@click.command()
@JOBS
@click.option("--timeline", is_flag=True, help="Show where and when each attempt ran, and why it ended.")
@LIVE
def show(jobs: tuple[str, ...], timeline: bool, session: Session) -> None:
    """Show everything about jobs: their description and their history. --json: one object per line."""
    with session.client() as client:
        separator = False
        for name in jobs:
            for job in client.members(name):
                if timeline:
                    _show_timeline(client, job, session.as_json, separator)
                    separator = True
                    continue
                if session.as_json:
                    print_line(job)
                    continue
                if separator:
                    click.echo()
                separator = True
                print_lines(lines(job, datetime.now(UTC), _files(client, job)))


def _show_timeline(client: Client, job: Job, as_json: bool, separator: bool) -> None:
    leases = client.timeline(job.id)
    if as_json:
        print_line({"job": job.id, "leases": leases})
        return
    if separator:
        click.echo()
    print_lines([_title(job)])
    if leases:
        show_timeline(leases)
    else:
        say("it has had no GPUs yet")


def _files(client: Client, job: Job) -> Sequence[FileList]:
    """Return where the files of a job lie, without the files; nothing if that is not known soon."""
    from gavel.client import GavelError

    with suppress(GavelError, TimeoutError):
        return client.files(job.id, (), timeout_s=FILES_S) if job.attempt else ()
    return ()


def lines(job: Job, now: datetime, files: Sequence[FileList] = ()) -> Iterator[Line]:
    """Return the lines that describe a job. `files`: where its files lie."""
    from gavel.client.views.job_details import history, places, request

    yield _title(job)
    for key, value in (*history(job, now), *places(job, files)):
        yield words(f"  {key.ljust(KEY_CHARS)}  {value}")
    yield words("")
    for key, value in request(job):
        yield words(f"  {key.ljust(KEY_CHARS)}  {value}")
    if job.last_lines:
        yield words("")
        yield words("  last lines of the attempt that failed:")
        for line in job.last_lines.splitlines():
            yield words(f"    {line}", "dim")


def _title(job: Job) -> Line:
    name = f" '{job.spec.name}'" if job.spec.name else ""
    title = words(f"job {job.id}{name} ", "bold").add(state_text(job.state))
    return title.add(words(f" ({why_words(job)})")) if job.why else title
