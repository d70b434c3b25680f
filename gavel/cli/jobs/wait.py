"""`gavel wait`, and the end of `gavel submit --wait`: wait until jobs have ended; the exit code reports success."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault
from gavel.cli.io.durations import length_s
from gavel.cli.io.options import JOBS
from gavel.cli.io.outputs import say
from gavel.cli.io.session import FAILED, LIVE, OK, REFUSED, Session, print_line

if TYPE_CHECKING:
    from gavel.client import Client, Job


@click.command()
@JOBS
@click.option("--timeout", metavar="DURATION", help="Give up after this time, with exit code 6.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report changes.")
@LIVE
def wait(jobs: tuple[str, ...], timeout: str | None, quiet: bool, session: Session) -> None:
    """Wait until jobs have ended. Exit code 0: all succeeded; 1: one did not."""
    timeout_s = None if timeout is None else length_s("--timeout", timeout)
    with session.client() as client:
        # Fail at once if no scheduler answers at the start; later, `wait_for` tolerates short outages.
        client.status()
        sys.exit(wait_for(client, jobs, timeout_s, as_json=session.as_json, quiet=quiet))


def wait_for(
    client: Client,
    jobs: Sequence[str],
    timeout_s: float | None = None,
    *,
    as_json: bool = False,
    quiet: bool = False,
    followed: bool = False,
) -> int:
    """Wait until jobs have ended and return the exit code; report changes on standard error.

    `followed`: the user has seen the output, so only failures are reported.
    """
    silent = quiet or as_json or followed
    reported: dict[str, str] = {}

    def report(job: Job) -> None:
        words = _in_words(job)
        if not silent and reported.get(job.id) != words:
            reported[job.id] = words
            say(words)

    try:
        ended = client.wait(jobs, timeout_s=timeout_s, on_change=report)
    except TimeoutError:
        raise Fault("not all jobs have ended in that time; they continue", REFUSED) from None
    for job in ended:
        if as_json:
            print_line(job)
        elif followed:
            if job.state != "completed":
                say(_in_words(job))
        elif job.state == "failed" and job.last_lines:
            say(f"job {job.id}, its last lines:")
            for line in job.last_lines.splitlines():
                say(f"  {line}")
    return OK if all(job.state == "completed" for job in ended) else FAILED


def _in_words(job: Job) -> str:
    from gavel.client.views.text import state_words

    return f"job {job.id}: {state_words(job)}"
