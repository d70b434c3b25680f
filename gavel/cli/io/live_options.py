"""Options that commands of a live scheduler have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
STATES = ("queued", "running", "preempted", "held", "completed", "failed", "cancelled")


class State(click.Choice[str]):
    """A state, in capitals too, and by the names that other schedulers have for it."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gavel.cli.io.other_schedulers import STATES as ELSEWHERE

        word = value.lower()
        return super().convert(ELSEWHERE.get(word, word), param, ctx)


def options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several at once, in the order of the help."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


ADDRESS = options(
    click.option(
        "--address", metavar="HOST:PORT", help="Of the scheduler.  [default: GAVEL_ADDRESS, or the context's]"
    ),
    click.option("--context", metavar="NAME", help="A cluster that `gavel login` has stored."),
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/cli.md has its keys.")
LIVE = options(JSON, ADDRESS)
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
STATE = click.option(
    "--state",
    "states",
    multiple=True,
    type=State(STATES),
    metavar="STATE",
    help="In this state; several: any of them.",
)
FILTERS = options(
    STATE,
    click.option("-u", "--user", metavar="USER", help="Of this user."),
    click.option("--tenant", default="", metavar="TENANT", help="Of this tenant, or below it."),
    click.option("--name", default="", metavar="NAME", help="With this name; * and ? stand for anything."),
    click.option("--job-type", default="", metavar="TYPE", help="Of this job type."),
    click.option("--worker-type", default="", metavar="TYPE", help="On GPUs of this type now."),
    click.option("--node", default="", metavar="NODE", help="On this node now."),
)
JOBS = click.argument("jobs", nargs=-1, required=True, metavar="JOB…")
MAYBE_JOBS = click.argument("jobs", nargs=-1, metavar="[JOB…]")
