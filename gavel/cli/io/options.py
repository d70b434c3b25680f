"""Options that several commands share, and types of option values: numbers, states."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gavel.cli.io.completion import complete_contexts, complete_jobs, complete_nodes, complete_worker_types

if TYPE_CHECKING:
    from scheduler.model.bounds import Bound

Command = Callable[..., Any]
# In place of a file: standard output, or standard input.
STDOUT = "-"
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,400}\s*")


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine several options into one decorator; the help lists them in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def limit_option(default: int, rows: str) -> Callable[[Command], Command]:
    """Return the option `--limit` of a command that lists these things."""
    return click.option(
        "-l",
        "--limit",
        type=click.IntRange(1, 1_000_000),
        default=default,
        show_default=True,
        metavar="N",
        help=f"The most {rows} to list.",
    )


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty value, such as `--config "$FILE"` with an unset variable."""
    is_given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
    if is_given and value == "":
        raise click.BadParameter("is empty; leave it out, or give a value")
    return value


# ------------------------------------------------------------------------------------------- types of values


class Number(click.ParamType):
    """A number within bounds; never NaN."""

    name = "number"

    def __init__(self, bound: Bound, *, whole: bool = False) -> None:
        self.bound, self.whole = bound, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number, or end the command with a message."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def read(self, value: Any) -> float:
        """Return the number, or raise a ValueError with the reason."""
        kind = "whole number" if self.whole else "number"
        try:
            if self.whole and isinstance(value, str) and not _WHOLE.fullmatch(value):
                raise ValueError
            number = int(value) if self.whole else float(value)
        except (ValueError, OverflowError):
            raise ValueError(f"'{value}' is not a {kind}") from None
        if math.isnan(number) or not self.bound.admits(number):
            from scheduler.model.bounds import readable

            allowed = f"a {kind} {self.bound}".replace(f"a {kind} 0 or", "0 or")
            raise ValueError(f"is {readable(number)}, must be {allowed}")
        return number


class State(click.Choice[str]):
    """A state of jobs, in upper or lower case, or its name in other schedulers."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return Gavel's name of the state."""
        from gavel.cli.io.other_schedulers import STATES

        word = value.lower()
        return super().convert(STATES.get(word, word), param, ctx)


# ------------------------------------------------------------------------------------------- shared options


ADDRESS = options(
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="The scheduler's address.  [default: GAVEL_ADDRESS, or the context's]",
    ),
    click.option(
        "--context",
        metavar="NAME",
        help="A cluster stored by `gavel login`.",
        shell_complete=complete_contexts,
    ),
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/cli.md has its keys.")
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
JOB_STATES = ("queued", "running", "preempted", "held", "completed", "failed", "cancelled")
FILTERS = options(
    click.option(
        "--state",
        "states",
        multiple=True,
        type=State(JOB_STATES),
        metavar="STATE",
        help="Only jobs in this state; may be repeated.",
    ),
    click.option("-u", "--user", metavar="USER", help="Only jobs of this user."),
    click.option(
        "--tenant", default="", metavar="TENANT", help="Only jobs of this tenant or of a tenant below it."
    ),
    click.option(
        "--name", default="", metavar="NAME", help="Only jobs with this name; * and ? are wildcards."
    ),
    click.option("--job-type", default="", metavar="TYPE", help="Only jobs of this type."),
    click.option(
        "--worker-type",
        default="",
        metavar="TYPE",
        help="Only jobs that now have GPUs of this type.",
        shell_complete=complete_worker_types,
    ),
    click.option(
        "--node",
        default="",
        metavar="NODE",
        help="Only jobs that are now on this node.",
        shell_complete=complete_nodes,
    ),
)
CONFIG = click.option(
    "--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's settings file."
)
FINDINGS_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
DATA_DIR = click.option("--data-dir", metavar="DIR", help="Where the scheduler keeps its data.")
JOBS = click.argument("jobs", nargs=-1, required=True, metavar="JOB…", shell_complete=complete_jobs())
