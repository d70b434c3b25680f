"""`gavel attach`, `gavel shell` and the end of `gavel run`: the user's terminal becomes that of a job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from gavel.cli.io.completion import complete_jobs, complete_nodes
from gavel.cli.io.outputs import say
from gavel.cli.io.session import FAILED, LIVE_AS_TEXT, OK, Session
from gavel.cli.jobs import forward
from gavel.client.views.job_text import why_with_exit_code
from gavel.client.views.units import span

if TYPE_CHECKING:
    from gavel.client import Client


@click.command()
@click.argument("job", shell_complete=complete_jobs(("running",), to_change=True))
@forward.FORWARD
@LIVE_AS_TEXT
def attach(job: str, ports: tuple[str, ...], session: Session) -> None:
    """Attach your terminal to an interactive job.

    `gavel run` starts such jobs. Enter ~ . detaches again. The exit code is that of the job's program.
    """
    with forward.opened(ports) as forwardings, session.client() as client:
        job_id = client.get(job).id
        forward.begin(forwardings, client, job_id)
        sys.exit(attach_to(client, job_id))


@click.command()
@click.argument("job", shell_complete=complete_jobs(("running",), to_change=True))
@click.option(
    "--node",
    default="",
    metavar="NODE",
    help="One of the job's nodes.  [default: the first]",
    shell_complete=complete_nodes,
)
@forward.FORWARD
@LIVE_AS_TEXT
def shell(job: str, node: str, ports: tuple[str, ...], session: Session) -> None:
    """Open a shell beside a running job.

    It runs on the job's node, as its user, in its environment and work directory, and sees its GPUs. It ends with the
    job at the latest, and its exit code does not affect the job. Enter ~ . leaves it,
    and a minute later it is closed.
    """
    from gavel.cli.io import local_terminal
    from gavel.client.terminal import TerminalSession

    with forward.opened(ports) as forwardings, session.client() as client:
        target = client.get(job)
        forward.begin(forwardings, client, target.id)
        terminal = TerminalSession(
            client,
            target.id,
            attempt=target.attempt,
            size=local_terminal.size(),
            new_shell=True,
            tty=local_terminal.has_terminal(),
            term=os.environ.get("TERM", "")[:64],
            node=node,
        )
        client.on_trouble = local_terminal.report_trouble
        local_terminal.converse(terminal)
        sys.exit(exit_status(terminal.exit_code or 0))


def attach_to(client: Client, job: str) -> int:
    """Attach the user's terminal to a job until its program exits or the user detaches; return the exit code."""
    from gavel.cli.io import local_terminal
    from gavel.client import Refused
    from gavel.client.terminal import TerminalSession

    attempt = client.get(job).attempt
    terminal = TerminalSession(client, job, attempt=attempt, size=local_terminal.size())
    client.on_trouble = local_terminal.report_trouble
    try:
        has_ended = local_terminal.converse(terminal)
    except Refused:
        ended = client.get(job)
        if not ended.state.is_final or ended.spec.terminal is None:
            raise
        return _show_end(client, job, has_shown=terminal.opened is not None)
    if has_ended and terminal.exit_code is not None:
        return exit_status(terminal.exit_code)
    keep = span(terminal.opened.keep_s) if terminal.opened else ""
    local_terminal.report(
        f"detached from job {job}, which continues for {keep} without you; `gavel attach {job}` comes back"
    )
    return OK


def exit_status(code: int) -> int:
    """Return the exit status with which shells report this exit code: 128 + N for signal N."""
    return code if code >= 0 else 128 - code


def _show_end(client: Client, job: str, *, has_shown: bool) -> int:
    """Show the end of a job that has ended meanwhile; return its exit code. `has_shown`: its output was on screen."""
    ended = client.get(job)
    if not has_shown:
        for chunk in client.log_chunks(job):
            sys.stdout.buffer.write(chunk.data)
        sys.stdout.flush()
    else:
        say(f"the end of its output may be missing; `gavel logs {job}` has it")
    if ended.state == "completed":
        return OK
    say(f"job {job}: {ended.state.value} ({why_with_exit_code(ended)})")
    return exit_status(ended.exit_code) if ended.exit_code else FAILED
