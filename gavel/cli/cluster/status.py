"""`gavel status`: the state of the scheduler, and who the user is to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.io.options import LIVE
from gavel.cli.io.session import Session, print_json
from gavel.cli.io.tables import out
from gavel.cli.io.units import ago, span
from gavel.cli.io.wording import count_of, printable

if TYPE_CHECKING:
    from rich.text import Text

    from gavel.client.results import Identity, Status


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 if there is any warning: for monitoring.")
@LIVE
def status(check: bool, session: Session) -> None:
    """Show how the scheduler is, and who you are to it."""
    with session.client() as client:
        status, identity, connection = client.status(), client.who_am_i(), client.connection
    if session.as_json:
        print_json({"address": connection.address, "status": status, "identity": identity})
    else:
        console = out()
        for line in lines(status, identity, connection.address, datetime.now(UTC)):
            console.print(line)
    if check and status.warnings:
        sys.exit(1)


def lines(status: Status, identity: Identity, address: str, now: datetime) -> Iterator[Text]:
    """Return what is shown of a scheduler."""
    from rich.text import Text

    stopping = ", stopping: it takes no more jobs" if status.stopping else ""
    started = f"started {ago(status.started, now)}"
    yield Text(f"gavel {status.version} at {address}, {started}{stopping}", style="bold")
    yield Text(f"  policy  {printable(status.policy)}; round {status.round}{_round_ends(status, now)}")
    yield Text(f"  GPUs    {status.gpus_busy} of {status.gpus} busy, on {count_of(status.nodes, 'node')}")
    counts = [f"{count} {state}" for state, count in sorted(status.jobs.items()) if count]
    yield Text(f"  jobs    {', '.join(counts) or 'none'}")
    expires = ""
    if identity.expires is not None:
        left = span((identity.expires - now).total_seconds())
        expires = f", until {identity.expires.astimezone().date()} ({left} left)"
    yield Text(f"  you     {printable(identity.user)}, {identity.role.value}{expires}")
    if status.data_dir:
        yield Text(f"  data    {printable(status.data_dir)}")
    for warning in status.warnings:
        yield Text(f"  warning: {printable(warning)}", style="yellow")


def _round_ends(status: Status, now: datetime) -> str:
    if status.round_ends is None or not status.round:
        return ""
    return f", {'ends' if status.round_ends > now else 'ended'} {ago(status.round_ends, now)}"
