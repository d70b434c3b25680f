"""`gavel submit`: submits jobs from files or from a command line, or previews them; then waits or follows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import UNFINISHED, complete_jobs, complete_nodes, complete_worker_types
from gavel.cli.io.options import Command, options
from gavel.cli.io.outputs import print_data, say
from gavel.cli.io.session import LIVE, Session, errors_as_faults, print_line
from gavel.cli.jobs.field_table import FIELDS
from gavel.client.jobs.ids import array_of
from gavel.client.views.job_text import ids

if TYPE_CHECKING:
    from gavel.client import Client, JobSpec

AFTER_DASHES = "gavel.after_dashes"


class WithCommand(click.Command):
    """A command that keeps the arguments after `--`, the user's command line, away from the parser of options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            dashes = args.index("--")
            ctx.meta[AFTER_DASHES] = tuple(args[dashes + 1 :])
            args = args[:dashes]
        return super().parse_args(ctx, args)


# The placeholder in the help for a value of each of these kinds. A kind that is a name takes the last word of the
# option's name; any other kind takes its own words.
_METAVARS = {
    "channels": "CHANNEL[:EVENT,…]",
    "path": "DIR",
    "lines of shell": "LINES",
    "image or container": "IMAGE",
    "plan file, model or none": "FILE|auto=PROFILE,batch=N|none",
    "size": "SIZE",
    "duration": "DURATION",
    "duration or time": "WHEN",
    "indices": "0-9",
    "mapping of names to text": "KEY=VALUE",
    "mapping of variables to text": "KEY=VALUE",
    "mapping of variables to secrets": "KEY=SECRET",
    "mapping of worker types to numbers": "TYPE=N",
    "jobs": "JOB[:ended]",
    **dict.fromkeys(
        ("number or range", "number above 0", "number from 0 up", "whole number", "whole number from 1"), "N"
    ),
}
_SHORT = {"name": "-n", "gpus": "-g", "worker_types": "-t", "env": "-e"}
_OPPOSITES = {
    "preemptible": "--not-preemptible",
    "packable": "--not-packable",
    "reports_steps": "--reports-no-steps",
}
_COMPLETIONS = {
    "after": complete_jobs(UNFINISHED),
    "nodes": complete_nodes,
    **dict.fromkeys(("worker_types", "exclude_worker_types"), complete_worker_types),
}
# Notes for the help of an option that do not apply to the field of a job file.
_NOTES = {
    "env": "KEY without a value copies the variable from your environment.",
    "workdir": "[with a command: the current directory]",
}


def field_option(name: str, kind: str, meaning: str, metavar: str = "") -> Callable[[Command], Command]:
    """Return the option that sets this field of a job file. `metavar` replaces the placeholder in the help."""
    # An option that may be given several times is named in the singular.
    several = kind in ("jobs", "channels") or kind.startswith(("mapping of ", "name or list "))
    singular = name.removesuffix("s") if several else name
    option = f"--{singular.replace('_', '-')}"
    help = f"{meaning}.  {_NOTES.get(name, '')}".strip()
    if kind == "true or false":
        opposite = _OPPOSITES.get(name)
        return click.option(
            f"{option}/{opposite}" if opposite else option, name, is_flag=True, default=None, help=help
        )
    last_word = singular.rpartition("_")[2].upper()
    metavar = metavar or _METAVARS.get(kind) or (last_word if "name" in kind else kind.replace(" or ", "|"))
    options = [_SHORT[name], option] if name in _SHORT else [option]
    complete = _COMPLETIONS.get(name)
    return click.option(*options, name, multiple=several, metavar=metavar, help=help, shell_complete=complete)


@click.command(cls=WithCommand, options_metavar="[OPTIONS]")
@click.argument("files", nargs=-1, metavar="[FILE…] [-- COMMAND…]", type=click.Path(allow_dash=True))
@options(*(field_option(*field) for field in FIELDS))
@click.option("--dry-run", is_flag=True, help="Show what would happen, and submit nothing.")
@click.option(
    "--wait", is_flag=True, help="Wait until the jobs have ended; exit code 1 if one did not succeed."
)
@click.option("-f", "--follow", is_flag=True, help="Show the job's output until it has ended.")
@click.option("--key", metavar="TEXT", help="Repeating the submission with this key creates no new jobs.")
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
    """Submit the jobs in job files, or a job that runs COMMAND.

    FILE is YAML (docs/job-file.md); - is standard input. Either all jobs are accepted or none. Options override the
    files. Examples: `gavel submit train.yaml`, `gavel submit --gpus 4 -- python train.py --lr 0.1`.
    """
    if schema:
        from gavel.client.jobs.fields import json_schema

        print_data(json_schema())
        return
    # With an empty key, such as from an unset shell variable, each repetition would create new jobs.
    if key is not None and not key.strip():
        raise Fault("--key: is empty")
    specs = _specs(files, ctx.meta.get(AFTER_DASHES), fields)
    if follow and len(specs) * max(len(specs[0].array), 1) > 1:
        raise Fault("--follow shows only one job; submit, then run `gavel logs -f JOB` for each")
    with session.client(changes=True) as client:
        from gavel.cli.jobs.dependencies import with_dependency_ids
        from gavel.cli.jobs.submission_warnings import submission_warnings

        for warning in submission_warnings(client, specs):
            say(warning)
        specs = _with_plans(client, specs)
        specs = with_dependency_ids(client, specs, from_option=bool(fields["after"]), has_key=key is not None)
        if dry_run:
            from gavel.cli.jobs.preview import show_preview

            sys.exit(show_preview(client, specs, session.as_json))
        jobs = _send(client, specs, key)
        if session.as_json:
            print_line({"jobs": jobs})
        else:
            click.echo(f"submitted {ids(jobs)}")
        if wait or follow:
            sys.exit(_wait_or_follow(client, jobs, follow, session.as_json))


def _with_plans(client: Client, specs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Return the jobs with their automatic plans computed, and print notes about these."""
    from gavel.client.jobs.intake import has_auto_plans

    if not has_auto_plans(specs):
        return tuple(specs)
    from gavel.cli.io.progress import bar
    from gavel.client.plans.planning import planned

    with bar("planning") as show:
        with_plans, notes = planned(
            specs, client.nodes(), lambda words, done, total: show(words, done / total)
        )
    for note in notes:
        say(note)
    return with_plans


def _send(client: Client, specs: Sequence[JobSpec], key: str | None) -> Sequence[str]:
    if not any(spec.upload for spec in specs):
        return client.submit(specs, key)
    from gavel.cli.io.progress import bar

    with bar("packing") as show:
        return client.submit(
            specs, key, lambda words, done, total: show(words, done / total if total else None)
        )


def _wait_or_follow(client: Client, jobs: Sequence[str], follow: bool, as_json: bool) -> int:
    """Wait until the jobs have ended, and return the exit code. Ctrl-C ends this command, not the jobs."""
    from gavel.cli.jobs.logs import show_logs
    from gavel.cli.jobs.wait import wait_for

    try:
        if follow:
            show_logs(client, [client.get(jobs[0])], follow=True, as_json=as_json)
        return wait_for(client, jobs, as_json=as_json, followed=follow)
    except KeyboardInterrupt:
        stop = " ".join(dict.fromkeys(array_of(job) for job in jobs))
        say(f"not cancelled: {ids(jobs)}; to cancel: `gavel cancel {stop}`")
        raise


def _specs(
    files: Sequence[str], command: tuple[str, ...] | None, fields: dict[str, Any]
) -> tuple[JobSpec, ...]:
    """Return the jobs of the files or the command line, with the values of options."""
    from gavel.cli.jobs.flags import flag_values
    from gavel.client import JobSpec, read_job_file

    _check_source(files, command)
    values = flag_values(fields)
    if values.get("workdir"):
        values["workdir"] = os.path.abspath(os.path.expanduser(values["workdir"]))
    if command is not None:
        return (JobSpec(**{"workdir": os.getcwd(), **values}, command=command),)
    with errors_as_faults():
        specs = [spec for file in files for spec in read_job_file(file)]
    return tuple(_with_values(spec, values) for spec in specs)


def _check_source(files: Sequence[str], command: tuple[str, ...] | None) -> None:
    if command is None and not files:
        raise Fault("give a job file, or a command after --: `gavel submit --gpus 1 -- python train.py`")
    if command is not None and files:
        raise Fault(f"give either job files or a command, not both ('{files[0]}' is before --)")
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
    """Return the job of a file with the values of options.

    A job with --upload and no workdir uploads the directory of its file.
    """
    # A number of GPUs overrides the file's range, too.
    if "gpus" in values:
        values = {"gpus_min": None, "gpus_max": None, **values}
    if values.get("upload") and not spec.workdir and spec.source is not None:
        values = {"workdir": os.path.dirname(os.path.abspath(spec.source.file)), **values}
    return replace(spec, **values)
