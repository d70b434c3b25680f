"""The `gavel` command: what can be asked of it, and nothing yet of how it is done.

A command's body lives in a module of its own that is imported when the command runs, so that `gavel --help`
and shell completion answer at once. Whatever is wrong with what the user gave ends as one line and exit code 2.
"""

from __future__ import annotations

import errno
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

import gavel
from gavel.cli.faults import Fault, Interrupted
from gavel.cli.io.option_values import SEED_MAX, Seed
from gavel.cli.policies.completion import complete_policy

GROUPS = {
    "Jobs": ("submit", "queue", "show", "logs", "explain", "wait", "cancel", "hold", "release", "requeue"),
    "Cluster": (
        *("status", "top", "nodes", "drain", "resume", "remove"),
        *("usage", "policy", "token", "login", "context"),
    ),
    "Policies and simulation": (
        *("policies", "allocate", "simulate", "sweep", "replay", "compare", "generate"),
    ),
    "Service": (
        *("up", "init", "serve", "agent", "config", "doctor", "backup", "restore", "fsck", "completion"),
    ),
}


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns click's paragraph about a wrong option, Ctrl-C, and output that nothing takes, into a `Fault`."""
    from gavel.cli.io.wording import printable

    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        from gavel.cli.io.other_schedulers import here_it_is

        message = here_it_is(error) or error.format_message().replace("\n\t", " ")
        raise Fault(printable(message[:1].lower() + message[1:]), error.ctx) from None
    except (KeyboardInterrupt, click.Abort):
        raise Interrupted("interrupted") from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # `| head` has seen enough: click ends quietly
            raise
        raise Fault(f"cannot write: {(error.strerror or str(error)).lower()}") from None


class _Commands(click.Group):
    """Commands whose faults are one line each, those of their options included."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`gavel help submit` is `gavel submit --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By what they are about, each with the whole of its first sentence."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _summary(self.commands[name])) for name in names])

    def invoke(self, context: click.Context) -> Any:
        with _one_line():
            return super().invoke(context)


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gavel.__version__, prog_name="gavel")
def main() -> None:
    """Share a cluster of unlike GPUs among jobs, knowing how fast each job runs on each type.

    To try it on this machine: `gavel up`, and in another terminal `gavel submit -- COMMAND`. Where a cluster is set
    up: `gavel login`. docs/cli.md has everything.
    """
    # A terminal that lacks a character gets a substitute, not a traceback.
    for stream, substitute in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=substitute)


def _duration(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"must be a number of seconds above 0, got {value:g}")
    return value


@main.command()
@click.argument("problem", type=click.Path(allow_dash=True))
@click.option(
    "--policy",
    "spec",
    default="las",
    show_default=True,
    metavar="SPEC",
    shell_complete=complete_policy,
    help="Which policy: 'las', 'las+packing', 'min_cost(premium=0.2)'. `gavel policies` lists them.",
)
@click.option(
    "--seed",
    type=Seed(0, SEED_MAX),
    metavar="N",
    help="For policies that draw lots; replaces the file's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--all-jobs", is_flag=True, help="Show every job, however many there are.")
@click.option(
    "--plot", type=click.Path(), metavar="FILE", help="Draw the answer too: a .png, .svg or .pdf file."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    callback=_duration,
    metavar="SECONDS",
    help="Stop solving after so long, with the best answer until then.",
)
def allocate(**options: Any) -> None:
    """Divide the cluster in PROBLEM among its jobs.

    PROBLEM is a JSON or YAML file, or - for standard input: the worker types, the jobs, and how fast each job
    runs on each type. docs/problem-format.md has every field.
    """
    from gavel.cli.policies.allocate import allocate

    allocate(**options)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def policies(as_json: bool) -> None:
    """List the policies: what each maximises and what it needs to know."""
    from gavel.cli.policies.policy_list import show

    show(as_json)


def _add_commands() -> None:
    """Those with a file of their own for their options, which need what stands above."""
    from gavel.cli.service import commands as service_commands
    from gavel.cli.simulation import commands as sim_commands

    for command in (*sim_commands.COMMANDS, *service_commands.COMMANDS):
        main.add_command(command)


_add_commands()
