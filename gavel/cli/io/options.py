"""Options that several commands have, and the types of their values: clusters, prices, ranges, lists, states."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]
GPUS_MAX = 1_000_000
SEED_MAX = 2**63 - 1


def options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Put several options together, in the order of the help."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse `--config ""`, which a shell makes of a variable that is not set."""
    given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
    if given and value == "":
        raise click.BadParameter("is empty; leave it out, or say what is meant")
    return value


# ------------------------------------------------------------------------------------------- types of values


class Cluster(click.ParamType):
    """GPUs by worker type, in the order given: `v100=36,k80=36`."""

    name = "cluster"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Return the number of GPUs of each type."""
        if isinstance(value, dict):
            return value
        cluster: dict[str, int] = {}
        for kind, text in _pairs(self, value, param, ctx, "v100=36,k80=36"):
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= GPUS_MAX and len(text) < 9):
                self.fail(f"{kind}={text}: must be a whole number of GPUs from 1 to {GPUS_MAX:,}", param, ctx)
            if kind in cluster:
                self.fail(f"'{kind}' stands twice", param, ctx)
            cluster[kind] = int(text)
        return cluster


class Prices(click.ParamType):
    """Prices per GPU and hour by worker type: `v100=2.5,k80=0.5`."""

    name = "prices"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """Return the price of each type."""
        if isinstance(value, dict):
            return value
        prices: dict[str, float] = {}
        for kind, text in _pairs(self, value, param, ctx, "v100=2.5,k80=0.5"):
            prices[kind] = _number(text)
            if not (math.isfinite(prices[kind]) and prices[kind] >= 0):
                self.fail(f"{kind}={text}: must be a price from 0 up", param, ctx)
        return prices


def _pairs(
    kind: click.ParamType, value: str, param: click.Parameter | None, ctx: click.Context | None, example: str
) -> list[tuple[str, str]]:
    pairs = [tuple(part.strip() for part in entry.partition("=")) for entry in value.split(",")]
    for name, equals, text in pairs:
        if not (name and equals and text):
            kind.fail(f"'{value}' is not of the form {example}", param, ctx)
    return [(name, text) for name, _, text in pairs]


def _number(text: Any) -> float:
    """Return the number; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


class JobRange(click.ParamType):
    """A range of jobs without its end: `4000:5000`."""

    name = "range of jobs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return the first job, and the one behind the last."""
        if isinstance(value, tuple):
            return value
        first, colon, end = value.partition(":")
        if not (colon and all(t.isascii() and t.isdigit() and len(t) < 10 for t in (first, end))):
            self.fail(f"'{value}' is not a range of jobs such as 4000:5000", param, ctx)
        if int(first) >= int(end):
            self.fail(f"'{value}' is empty: the first number must be below the second", param, ctx)
        return int(first), int(end)


class Listed(click.ParamType):
    """Values separated by commas, as in `2,4,4.8`; commas in parentheses belong to the value."""

    def __init__(self, each: click.ParamType, name: str) -> None:
        self.each, self.name = each, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return each value, once."""
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in split_outside_parentheses(value)]
        if not all(parts):
            self.fail(f"'{value}' has an empty place between its commas", param, ctx)
        return list(dict.fromkeys(self.each.convert(part, param, ctx) for part in parts))


def split_outside_parentheses(text: str) -> list[str]:
    """Split at commas, except those in `min_cost(premium=0.2, …)`."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class Number(click.ParamType):
    """A number above, or from, some least value; NaN is none."""

    name = "number"

    def __init__(
        self, *, above: float | None = None, least: float | None = None, infinite: bool = False
    ) -> None:
        self.above, self.least, self.infinite = above, least, infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        wanted = f"above {self.above:g}" if self.above is not None else f"from {self.least:g} up"
        number = _number(value)
        low = (self.above is not None and number <= self.above) or (
            self.least is not None and number < self.least
        )
        if math.isnan(number) or low or (math.isinf(number) and not self.infinite):
            self.fail(f"'{value}' is not a number {wanted}", param, ctx)
        return number


ABOVE_0, FROM_0, RATE = Number(above=0.0), Number(least=0.0), Number(above=0.0, infinite=True)


class Seed(click.IntRange):
    """A seed; `name` stands in click's messages."""

    name = "whole number"


class State(click.Choice[str]):
    """A state of jobs, in capitals too, and by the names that other schedulers have for it."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return our name of the state."""
        from gavel.cli.io.other_schedulers import STATES

        word = value.lower()
        return super().convert(STATES.get(word, word), param, ctx)


# ------------------------------------------------------------------------------------------- shared options


def with_quiet_grpc(command: Command) -> Command:
    """Load gRPC without its own log before the command runs: it reports each failed call once, in our words.

    gRPC reads the variable once, when it is loaded. It does not stay in the environment, so that a scheduler or an
    agent started by a command (`gavel up`) still logs what gRPC reports.
    """

    @functools.wraps(command)
    def run(*arguments: Any, **values: Any) -> Any:
        if "GRPC_VERBOSITY" not in os.environ:
            os.environ["GRPC_VERBOSITY"] = "NONE"
            import grpc  # noqa: F401

            del os.environ["GRPC_VERBOSITY"]
        return command(*arguments, **values)

    return run


ADDRESS = options(
    click.option(
        "--address", metavar="HOST:PORT", help="Of the scheduler.  [default: GAVEL_ADDRESS, or the context's]"
    ),
    click.option("--context", metavar="NAME", help="A cluster that `gavel login` has stored."),
    with_quiet_grpc,
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/cli.md has its keys.")
LIVE = options(JSON, ADDRESS)
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
JOB_STATES = ("queued", "running", "preempted", "held", "completed", "failed", "cancelled")
FILTERS = options(
    click.option(
        "--state",
        "states",
        multiple=True,
        type=State(JOB_STATES),
        metavar="STATE",
        help="In this state; several: any of them.",
    ),
    click.option("-u", "--user", metavar="USER", help="Of this user."),
    click.option("--tenant", default="", metavar="TENANT", help="Of this tenant, or below it."),
    click.option("--name", default="", metavar="NAME", help="With this name; * and ? stand for anything."),
    click.option("--job-type", default="", metavar="TYPE", help="Of this job type."),
    click.option("--worker-type", default="", metavar="TYPE", help="On GPUs of this type now."),
    click.option("--node", default="", metavar="NODE", help="On this node now."),
)
CONFIG = click.option(
    "--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's file of settings."
)
DATA_DIR = click.option("--data-dir", metavar="DIR", help="Where the scheduler keeps its data.")
JOBS = click.argument("jobs", nargs=-1, required=True, metavar="JOB…")
