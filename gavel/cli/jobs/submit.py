"""`gavel submit`: jobs from files or from a command line, submitted, tried dry, waited for, or followed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.job_text import ids
from gavel.cli.io.options import options
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, array_of, one_line, print_line

if TYPE_CHECKING:
    from gavel.client import Client, JobSpec

AFTER_DASHES = "gavel.after_dashes"


class _WithCommand(click.Command):
    """A command line of the user's stands after `--`, and none of its options are ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def _value(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return click.option(*names, metavar=metavar, help=help)


def _values(*names: str, help: str, metavar: str) -> Any:
    return click.option(*names, multiple=True, metavar=metavar, help=help)


# Each is checked as the field of the same name in a job file, and takes the place of what a file says.
FIELDS = options(
    _value("-n", "--name", metavar="NAME", help="For people; not unique."),
    _value("-g", "--gpus", metavar="N", help="How many GPUs; 2-8 for any width between."),
    _value("--cpus", metavar="N", help="CPUs of the whole job."),
    _value("--memory", metavar="SIZE", help="Memory of the whole job: 64GB."),
    _value("--gpu-memory", metavar="SIZE", help="Each GPU has at least this much, where it is known."),
    _values(
        "-t", "--worker-type", "worker_types", metavar="TYPE", help="On this type; several: on any of them."
    ),
    _values("--exclude-worker-type", "exclude_worker_types", metavar="TYPE", help="Not on this type."),
    _values("--node", "nodes", metavar="NODE", help="On this node; several: on any of them."),
    _values("--label", "labels", metavar="KEY=VALUE", help="On nodes with this label."),
    _value("--job-type", metavar="NAME", help="Jobs of one type share their measured rates."),
    _values(
        "--rate", "rates", metavar="TYPE=N", help="Steps per second on a worker type, where you know them."
    ),
    _value("--steps", metavar="N", help="Steps in all."),
    _value("--checkpoint-dir", metavar="DIR", help="An absolute path for checkpoints."),
    _value("--weight", metavar="N", help="5: five times the share."),
    _value("--tenant", metavar="TENANT", help="Whose share it uses: org/team."),
    _value("--user", metavar="USER", help="On whose behalf; for operators."),
    _value("--deadline", metavar="WHEN", help="Done by then: 8h, or a time; some policies keep it."),
    _value("--start", metavar="WHEN", help="Not before: 2h, or a time."),
    _value("--time-limit", metavar="DURATION", help="Of running, over all attempts: 2d."),
    _value("--min-run", metavar="DURATION", help="Once started, not preempted before."),
    _value("--max-cost", metavar="N", help="In the currency of the prices."),
    _value("--retries", metavar="N", help="After failures of its own."),
    _value("--retries-node", metavar="N", help="After failures of nodes.  [default: no limit]"),
    _value("--retries-preemption", metavar="N", help="After preemptions.  [default: no limit]"),
    click.option("--preemptible/--not-preemptible", default=None, help="Whether it may have to give way."),
    click.option("--packable/--not-packable", default=None, help="Whether it may share its GPUs."),
    click.option(
        "--reports-steps/--reports-no-steps",
        default=None,
        help="Whether it tells how many steps it has done.",
    ),
    _value("--restart-cost", metavar="DURATION", help="How long a restart takes, where you know it."),
    _values("--after", metavar="JOB[:ended]", help="Wait for a job, by id or name, to succeed, or to end."),
    _value("--array", metavar="0-9", help="A job for each index."),
    _value("--workdir", metavar="DIR", help="Where it runs.  [with a command: the current directory]"),
    click.option("--upload", is_flag=True, default=None, help="Pack the work directory and send it along."),
    _value("--setup", metavar="LINES", help="Lines of shell before the job's processes, once per node."),
    _value("--setup-limit", metavar="DURATION", help="How long that may take.  [default: the agent's, 1h]"),
    _value("--venv", metavar="DIR", help="A virtual environment on the nodes."),
    _values("-e", "--env", metavar="KEY=VALUE", help="An environment variable; KEY alone takes yours."),
    _values(
        "--env-from", metavar="KEY=SECRET", help="A variable from a secret that the nodes keep, by its name."
    ),
    _value("--ranks", metavar="PER", help="per_gpu or per_node: how many processes."),
    _value(
        "--checkpoints", metavar="PER", help="per_job or per_attempt: whether attempts share a directory."
    ),
)


@click.command(cls=_WithCommand, options_metavar="[OPTIONS]")
@click.argument("files", nargs=-1, metavar="[FILE…] [-- COMMAND…]", type=click.Path(allow_dash=True))
@FIELDS
@click.option("--dry-run", is_flag=True, help="Say what would happen, and submit nothing.")
@click.option("--wait", is_flag=True, help="Until the jobs have ended; exit code 1 if one did not succeed.")
@click.option("-f", "--follow", is_flag=True, help="Show what the job prints, until it has ended.")
@click.option("--key", metavar="TEXT", help="Submitting the same again with this key gives the same jobs.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of job files.")
@LIVE
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    follow: bool,
    key: str | None,
    schema: bool,
    session: Session,
    **fields: Any,
) -> None:
    """Submit the jobs in job files, or one that runs COMMAND.

    FILE is YAML (docs/job-file.md), - is standard input. All jobs are taken, or none. Options go before what
    the files say. Examples: `gavel submit train.yaml`, `gavel submit --gpus 4 -- python train.py --lr 0.1`.
    """
    if schema:
        from gavel.client.jobs.fields import json_schema

        click.echo(json.dumps(json_schema(), indent=2))
        return
    # A variable that is not set would make every submission a new one.
    if key is not None and not key.strip():
        raise Fault("--key: is empty")
    specs = _specs(files, ctx.meta.get(AFTER_DASHES), fields)
    if follow and len(specs) * max(len(specs[0].array), 1) > 1:
        raise Fault("--follow shows one job; submit, then `gavel logs -f JOB` for each")
    with session.client(changes=True) as client:
        from gavel.cli.jobs.dependencies import with_ids
        from gavel.cli.jobs.submission_warnings import submission_warnings

        for warning in submission_warnings(client, specs):
            say(warning)
        specs = with_ids(client, specs, by_flag=bool(fields["after"]), keyed=key is not None)
        if dry_run:
            from gavel.cli.jobs.preview import show_preview

            sys.exit(show_preview(client, specs, session.as_json))
        jobs = _send(client, specs, key)
        if session.as_json:
            print_line({"jobs": jobs})
        else:
            click.echo(f"submitted {ids(jobs)}")
        if wait or follow:
            sys.exit(_stay(client, jobs, follow, session.as_json))


def _send(client: Client, specs: Sequence[JobSpec], key: str | None) -> Sequence[str]:
    if not any(spec.upload for spec in specs):
        return client.submit(specs, key)
    from gavel.cli.io.progress import bar

    with bar("packing") as show:
        return client.submit(
            specs, key, lambda words, done, total: show(words, done / total if total else None)
        )


def _stay(client: Client, jobs: Sequence[str], follow: bool, as_json: bool) -> int:
    """Wait until the jobs have ended, and return the exit code. Ctrl-C ends this command, and no job."""
    from gavel.cli.jobs.logs import show_logs
    from gavel.cli.jobs.wait import wait_for

    try:
        if follow:
            show_logs(client, [client.get(jobs[0])], follow=True, as_json=as_json)
        return wait_for(client, jobs, as_json=as_json, followed=follow)
    except KeyboardInterrupt:
        stop = " ".join(dict.fromkeys(array_of(job) for job in jobs))
        say(f"not cancelled: {ids(jobs)}; `gavel cancel {stop}` does that")
        raise


def _specs(
    files: Sequence[str], command: tuple[str, ...] | None, fields: dict[str, Any]
) -> tuple[JobSpec, ...]:
    """Return the jobs of the files, or the one of the command line, with what options say in its place."""
    from gavel.cli.jobs.flags import flag_values
    from gavel.client import JobSpec, read_job_file

    _check_source(files, command)
    values = flag_values(fields)
    if values.get("workdir"):
        values["workdir"] = os.path.abspath(os.path.expanduser(values["workdir"]))
    if command is not None:
        return (JobSpec(**{"workdir": os.getcwd(), **values}, command=command),)
    with one_line():
        specs = [spec for file in files for spec in read_job_file(file)]
    return tuple(_with_values(spec, values) for spec in specs)


def _check_source(files: Sequence[str], command: tuple[str, ...] | None) -> None:
    if command is None and not files:
        raise Fault("give a job file, or a command after --: `gavel submit --gpus 1 -- python train.py`")
    if command is not None and files:
        raise Fault(f"give either job files or a command, not both ('{files[0]}' stands before --)")
    if command is not None and not (command and command[0]):
        raise Fault("no command after --")
    if (
        files
        and files[0] != "-"
        and not files[0].endswith((".yaml", ".yml"))
        and not os.path.exists(files[0])
    ):
        advice = f"a command goes after --: `gavel submit -- {' '.join(files)}`"
        raise Fault(f"{files[0]}: no such file or directory; {advice}")


def _with_values(spec: JobSpec, values: dict[str, Any]) -> JobSpec:
    """Return the job of a file with the values of options; without a work directory it uploads that of its file."""
    # A number of GPUs takes the place of the file's range, too.
    if "gpus" in values:
        values = {"gpus_min": None, "gpus_max": None, **values}
    if values.get("upload") and not spec.workdir and spec.source is not None:
        values = {"workdir": os.path.dirname(os.path.abspath(spec.source.file)), **values}
    return replace(spec, **values)
