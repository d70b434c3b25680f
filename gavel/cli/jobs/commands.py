"""Commands about jobs: their arguments and options, and nothing yet of how it is done."""

from __future__ import annotations

from typing import Any, Literal

import click

from gavel.cli.io.options import FILTERS, JOBS, LIVE, YES, options

AFTER_DASHES = "gavel.after_dashes"


class _WithCommand(click.Command):
    """What stands behind `--` is a command line of the user's, and none of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def _one(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return click.option(*names, metavar=metavar, help=help)


def _many(*names: str, help: str, metavar: str) -> Any:
    return click.option(*names, multiple=True, metavar=metavar, help=help)


# Each is checked as the field of a job file of the same name is, and goes before what a file says.
FIELDS = options(
    _one("-n", "--name", metavar="NAME", help="For people; not unique."),
    _one("-g", "--gpus", metavar="N", help="How many GPUs; 2-8 for any width between."),
    _one("--cpus", metavar="N", help="CPUs of the whole job."),
    _one("--memory", metavar="SIZE", help="Memory of the whole job: 64GB."),
    _one("--gpu-memory", metavar="SIZE", help="Each GPU has at least this much, where it is known."),
    _many(
        "-t", "--worker-type", "worker_types", metavar="TYPE", help="On this type; several: on any of them."
    ),
    _many("--exclude-worker-type", "exclude_worker_types", metavar="TYPE", help="Not on this type."),
    _many("--node", "nodes", metavar="NODE", help="On this node; several: on any of them."),
    _many("--label", "labels", metavar="KEY=VALUE", help="On nodes with this label."),
    _one("--job-type", metavar="NAME", help="Jobs of one type share their measured rates."),
    _many(
        "--rate", "rates", metavar="TYPE=N", help="Steps per second on a worker type, where you know them."
    ),
    _one("--steps", metavar="N", help="Steps in all."),
    _one("--checkpoint-dir", metavar="DIR", help="An absolute path for checkpoints."),
    _one("--weight", metavar="N", help="5: five times the share."),
    _one("--tenant", metavar="TENANT", help="Whose share it uses: org/team."),
    _one("--user", metavar="USER", help="On whose behalf; for operators."),
    _one("--deadline", metavar="WHEN", help="Done by then: 8h, or a time; some policies keep it."),
    _one("--start", metavar="WHEN", help="Not before: 2h, or a time."),
    _one("--time-limit", metavar="DURATION", help="Of running, over all attempts: 2d."),
    _one("--min-run", metavar="DURATION", help="Once started, not preempted before."),
    _one("--max-cost", metavar="N", help="In the currency of the prices."),
    _one("--retries", metavar="N", help="After failures of its own."),
    _one("--retries-node", metavar="N", help="After failures of nodes.  [default: no limit]"),
    _one("--retries-preemption", metavar="N", help="After preemptions.  [default: no limit]"),
    click.option("--preemptible/--not-preemptible", default=None, help="Whether it may have to give way."),
    click.option("--packable/--not-packable", default=None, help="Whether it may share its GPUs."),
    click.option(
        "--reports-steps/--reports-no-steps",
        default=None,
        help="Whether it tells how many steps it has done.",
    ),
    _one("--restart-cost", metavar="DURATION", help="How long a restart takes, where you know it."),
    _many("--after", metavar="JOB[:ended]", help="Wait for a job, by id or name, to succeed, or to end."),
    _one("--array", metavar="0-9", help="A job for each index."),
    _one("--workdir", metavar="DIR", help="Where it runs.  [with a command: the current directory]"),
    click.option("--upload", is_flag=True, default=None, help="Pack the work directory and send it along."),
    _one("--setup", metavar="LINES", help="Lines of shell before the job's processes, once per node."),
    _one("--setup-limit", metavar="DURATION", help="How long that may take.  [default: the agent's, 1h]"),
    _one("--venv", metavar="DIR", help="A virtual environment on the nodes."),
    _many("-e", "--env", metavar="KEY=VALUE", help="An environment variable; KEY alone takes yours."),
    _many(
        "--env-from", metavar="KEY=SECRET", help="A variable from a secret that the nodes keep, by its name."
    ),
    _one("--ranks", metavar="PER", help="per_gpu or per_node: how many processes."),
    _one("--checkpoints", metavar="PER", help="per_job or per_attempt: whether attempts share a directory."),
)


@click.command(cls=_WithCommand, options_metavar="[OPTIONS]")
@click.argument("files", nargs=-1, metavar="[FILE…] [-- COMMAND…]", type=click.Path(allow_dash=True))
@FIELDS
@options(
    click.option("--dry-run", is_flag=True, help="Say what would happen, and submit nothing."),
    click.option(
        "--wait", is_flag=True, help="Until the jobs have ended; exit code 1 if one did not succeed."
    ),
    click.option("-f", "--follow", is_flag=True, help="Show what the job prints, until it has ended."),
    click.option(
        "--key", metavar="TEXT", help="Submitting the same again with this key gives the same jobs."
    ),
    click.option("--schema", is_flag=True, help="Print the JSON Schema of job files."),
    LIVE,
)
@click.pass_context
def submit(ctx: click.Context, /, **given: Any) -> None:
    """Submit the jobs in job files, or one that runs COMMAND.

    FILE is YAML (docs/job-file.md), - is standard input. All jobs are taken, or none. Options go before what
    the files say. Examples: `gavel submit train.yaml`, `gavel submit --gpus 4 -- python train.py --lr 0.1`.
    """
    from gavel.cli.jobs.submit import submit

    submit(ctx.meta.get(AFTER_DASHES), **given)


@click.command()
@click.option("-a", "--all-users", "everybody", is_flag=True, help="Of all users.")
@click.option("--all", "all_", is_flag=True, hidden=True)  # what --all-users was called
@FILTERS
@options(
    click.option(
        "--ended",
        is_flag=True,
        help="Those that have ended, however long ago: when, where, for how long, at what cost and why.",
    ),
    click.option(
        "--since", metavar="WHEN", help="Submitted, or with --ended ended, since then: 2d, or a time."
    ),
    click.option(
        "-l",
        "--limit",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        show_default=True,
        metavar="N",
        help="At most so many.",
    ),
    click.option("-w", "--watch", is_flag=True, help="Go on with each change."),
    LIVE,
)
def queue(**given: Any) -> None:
    """List jobs: yours that have not ended and, below, the last that have, unless options say otherwise.

    Whatever names a --user, --state, --node or the like is asked for as it stands. Newest first.
    """
    from gavel.cli.jobs.queue import queue

    given["everybody"] |= given.pop("all_")
    queue(**given)


@click.command()
@JOBS
@LIVE
def show(**given: Any) -> None:
    """Show all about jobs: what was asked for, and what became of them. --json: one object per line."""
    from gavel.cli.jobs.show import show

    show(**given)


@click.command()
@click.argument("job")
@options(
    click.option(
        "-f", "--follow", is_flag=True, help="Stay until it has ended for good, across preemptions."
    ),
    click.option(
        "--attempt",
        type=click.IntRange(1),
        default=None,
        metavar="N",
        help="Of this attempt.  [default: all]",
    ),
    click.option(
        "--rank", type=click.IntRange(0), default=None, metavar="N", help="Of this rank.  [default: all]"
    ),
    click.option(
        "-n",
        "--tail",
        type=click.IntRange(0),
        default=None,
        metavar="LINES",
        help="Only the last lines, over all attempts.",
    ),
    LIVE,
)
def logs(**given: Any) -> None:
    """Show what a job printed. Of several ranks, each line begins with its rank; of an array, with its member.

    On a terminal, control characters other than colours are shown escaped; in a file or a pipe output is as it was.
    """
    from gavel.cli.jobs.logs import logs

    logs(**given)


def _changing(action: Literal["cancel", "hold", "release", "requeue"], text: str) -> click.Command:
    @click.command(action, help=text)
    @click.argument("jobs", nargs=-1, metavar="[JOB…]")
    @click.option(
        "--all", "all_", is_flag=True, help="Every job that the filters fit; yours, unless --user says."
    )
    @FILTERS
    @YES
    @LIVE
    def command(**given: Any) -> None:
        from gavel.cli.jobs.change import change

        change(action, **given)

    return command


cancel = _changing("cancel", "Stop jobs for good. JOB may be an array.")
hold = _changing("hold", "Let jobs wait until they are released; those that run save and stop.")
release = _changing("release", "Let held jobs run again.")
requeue = _changing("requeue", "Stop running jobs, and let them wait for their next turn.")


@click.command()
@JOBS
@options(
    click.option("--timeout", metavar="DURATION", help="Give up after so long, with exit code 6."),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing of changes."),
    LIVE,
)
def wait(**given: Any) -> None:
    """Wait until jobs have ended. Exit code 0: all succeeded; 1: one did not."""
    from gavel.cli.jobs.wait import wait

    wait(**given)
