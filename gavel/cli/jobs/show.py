"""`gavel show`: all about a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.io.lines import Line, print_lines, words
from gavel.cli.io.options import JOBS
from gavel.cli.io.session import LIVE, Session, print_line
from gavel.cli.io.tables import state_text
from gavel.client.views.job_text import why_words

if TYPE_CHECKING:
    from gavel.client import Client, Job
    from gavel.client.results import FileList

KEY_CHARS = 14
# How long the nodes may take to return where the files of a job lie.
FILES_S = 3.0


@click.command()
@JOBS
@LIVE
def show(jobs: tuple[str, ...], session: Session) -> None:
    """Show everything about jobs: their description and their history. --json: one object per line."""
    with session.client() as client:
        separator = False
        for name in jobs:
            for job in client.members(name):
                if session.as_json:
                    print_line(job)
                    continue
                if separator:
                    click.echo()
                separator = True
                print_lines(lines(job, datetime.now(UTC), _files(client, job)))


def _files(client: Client, job: Job) -> Sequence[FileList]:
    """Return where the files of a job lie, without the files; nothing if that is not known soon."""
    from gavel.client import GavelError

    with suppress(GavelError, TimeoutError):
        return client.files(job.id, (), timeout_s=FILES_S) if job.attempt else ()
    return ()


def lines(job: Job, now: datetime, files: Sequence[FileList] = ()) -> Iterator[Line]:
    """Return the lines that describe a job. `files`: where its files lie."""
    from gavel.client.views.job_details import history, places, request

    name = f" '{job.spec.name}'" if job.spec.name else ""
    title = words(f"job {job.id}{name} ", "bold").add(state_text(job.state))
    if job.why:
        title.add(words(f" ({why_words(job)})"))
    yield title
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
