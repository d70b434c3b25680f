"""`gavel run`: submit an interactive job, wait for its GPUs, and attach the user's terminal to it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import INTERRUPTED, Fault
from gavel.cli.io.durations import length_s
from gavel.cli.io.options import options
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE_AS_TEXT, Session, errors_as_faults
from gavel.cli.io.wording import printable
from gavel.cli.jobs import forward
from gavel.cli.jobs.field_table import FIELDS
from gavel.cli.jobs.submit import AFTER_DASHES, WithCommand, field_option
from gavel.client.views.job_text import job_on

if TYPE_CHECKING:
    from gavel.client import Client, Job, JobSpec

# The fields of job files that an interactive job may have.
_FIELDS = frozenset(
    {
        *("name", "setup", "setup_limit", "venv", "workdir", "upload", "container", "env", "env_from"),
        *("gpus", "cpus", "memory", "gpu_memory", "worker_types", "exclude_worker_types", "nodes", "labels"),
        *("weight", "tenant", "user", "start", "time_limit", "max_cost"),
    }
)
TIME_LIMIT_S = 8 * 3600.0
# The user's shell on the node.
_SHELL = ("/bin/sh", "-c", 'exec "$SHELL"')


@click.command(cls=WithCommand, options_metavar="[OPTIONS]", add_help_option=True)
@click.argument("words", nargs=-1, metavar="[-- COMMAND…]")
@options(*(field_option(*field) for field in FIELDS if field[0] in _FIELDS))
@click.option(
    "--keep",
    metavar="DURATION",
    help="How long it continues while no terminal is attached.  [default: the setting of its node, 10m]",
)
@forward.FORWARD
@LIVE_AS_TEXT
@click.pass_context
def run(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    keep: str | None,
    ports: tuple[str, ...],
    session: Session,
    **fields: Any,
) -> None:
    """Run a command on GPUs of the cluster, at your terminal.

    COMMAND is by default your shell. It waits for its GPUs (Ctrl-C cancels it), keeps them until it exits, and is not
    preempted. Enter ~ . detaches; `gavel attach` comes back. The time limit is 8h without --time-limit. The exit code
    is that of COMMAND. Without a terminal, as in a pipe, input and output are passed on unchanged. Example: `gavel run
    --gpus 1 -- bash`.
    """
    from gavel.cli.jobs.attach import attach_to

    if words:
        raise Fault(f"a command goes after --: `gavel run -- {' '.join(words)}`")
    command = ctx.meta.get(AFTER_DASHES, _SHELL)
    if not (command and command[0]):
        raise Fault("no command after --")
    spec = _spec(command, fields, None if keep is None else length_s("--keep", keep))
    with forward.opened(ports) as forwardings, session.client(changes=True) as client:
        (job,) = client.submit(spec)
        try:
            _wait_until_running(client, job)
            forward.begin(forwardings, client, job)
            code = attach_to(client, job)
        except KeyboardInterrupt:
            with errors_as_faults(client):
                client.cancel(job)
            raise Fault(f"interrupted: job {job} is cancelled", INTERRUPTED) from None
    sys.exit(code)


def _spec(command: tuple[str, ...], fields: dict[str, Any], keep_s: float | None) -> JobSpec:
    from gavel.cli.io import local_terminal
    from gavel.cli.jobs.flags import flag_values
    from gavel.client import JobSpec, Terminal

    values = flag_values(fields)
    values["workdir"] = os.path.abspath(os.path.expanduser(values.get("workdir") or os.getcwd()))
    is_tty = local_terminal.has_terminal()
    rows, columns = (local_terminal.size() if is_tty else None) or (0, 0)
    if is_tty and (kind := os.environ.get("TERM")):
        values["env"] = {"TERM": kind, **values.get("env", {})}
    return JobSpec(
        **{"time_limit_s": TIME_LIMIT_S, **values},
        command=command,
        terminal=Terminal(tty=is_tty, rows=rows, columns=columns, keep_s=keep_s),
        ranks="per_node",
        preemptible=False,
        packable=False,
        reports_steps=False,
        retries_node=0,
        # The user is connected to one process; the next attempt would be another, with GPUs that nobody asked for.
        retries_preemption=0,
    )


def _wait_until_running(client: Client, job: str) -> None:
    """Wait until the job's program runs, or the job has ended; show what it waits for."""
    from gavel.client import JobFilter

    with _status_line() as show:
        for event in client.watch(JobFilter(jobs=[job]), patience_s=math.inf):
            if event.job is None:
                continue
            if event.job.state.is_final or _is_running(event.job):
                return
            show(f"job {job}: {_progress(client, event.job)}")


def _is_running(job: Job) -> bool:
    return job.placement is not None and job.placement.phase == "running"


def _progress(client: Client, job: Job) -> str:
    if job.placement is not None:
        return f"starting on {job_on(job)} ({', '.join(job.placement.nodes)})"
    return client.explain(job.id).text


@contextmanager
def _status_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text in place of the last one; on a pipe, each new text has a line of its own."""
    if not sys.stderr.isatty():
        texts: list[str] = []

        def show_once(text: str) -> None:
            if text not in texts:
                texts.append(text)
                say(text)

        yield show_once
        return

    def show(text: str) -> None:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        click.echo(f"\r\x1b[K{printable(text)[: columns - 1]}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
