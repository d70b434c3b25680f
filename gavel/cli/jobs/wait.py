"""`gavel wait`, and the end of `gavel submit --wait`: until jobs have ended, with what became of them as exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gavel.cli.io.job_text import job_on, job_why
from gavel.cli.io.session import FAILED, OK, REFUSED, failure, job_id, print_line, scheduler
from gavel.cli.io.units import length_s
from gavel.cli.io.wording import printable
from gavel.client import Client, Job, JobState


def wait(
    jobs: tuple[str, ...],
    timeout: str | None,
    quiet: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The command's body."""
    timeout_s = None if timeout is None else length_s("--timeout", timeout)
    with scheduler(address, context) as client:
        client.status()  # nobody there is told at once; after that a scheduler may be away for a while
        named = [job_id(client, job) for job in jobs]
        sys.exit(wait_for(client, named, timeout_s, as_json=as_json, quiet=quiet))


def wait_for(
    client: Client,
    jobs: Sequence[str],
    timeout_s: float | None = None,
    *,
    as_json: bool = False,
    quiet: bool = False,
    followed: bool = False,
) -> int:
    """The exit code. Changes are said on standard error; of jobs that were `followed`, failure alone is news."""
    teller = _Teller(quiet or as_json or followed)
    try:
        ended = client.wait(jobs, timeout_s=timeout_s, hear=teller.hear)
    except TimeoutError:
        raise failure(REFUSED, "not all jobs have ended in that time; they go on") from None
    for job in ended:
        if as_json:
            print_line(job)
        elif followed:
            if job.state is not JobState.COMPLETED:
                click.echo(_words(job), err=True)
        elif job.state is JobState.FAILED and job.last_lines:
            click.echo(f"job {job.id}, its last lines:", err=True)
            click.echo("\n".join(f"  {printable(line)}" for line in job.last_lines.splitlines()), err=True)
    return OK if all(job.state is JobState.COMPLETED for job in ended) else FAILED


class _Teller:
    """Says each change of state once."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._said: dict[str, str] = {}

    def hear(self, job: Job) -> None:
        """A job as it is now."""
        words = _words(job)
        if not self._quiet and self._said.get(job.id) != words:
            self._said[job.id] = words
            click.echo(words, err=True)


def _words(job: Job) -> str:
    if job.placement is not None and job.state is JobState.RUNNING:
        if job.placement.phase != "running":
            return f"job {job.id}: starting on {job_on(job)}"
        return f"job {job.id}: running on {job_on(job)} ({printable(', '.join(job.placement.nodes))})"
    why = printable(job_why(job))  # also of one that is still being stopped
    return f"job {job.id}: {job.state.value}{f' ({why})' if why else ''}"
