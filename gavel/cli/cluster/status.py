"""`gavel status`: the state of the scheduler, and the user's own role."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.io.lines import Line, print_lines, words
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.wording import count_of
from gavel.client.views.units import ago, span

if TYPE_CHECKING:
    from gavel.client.results import Identity, Status


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 if there is any warning: for monitoring.")
@LIVE
def status(check: bool, session: Session) -> None:
    """Show the state of the scheduler, and your user and role."""
    with session.client() as client:
        status, identity, connection = client.status(), client.who_am_i(), client.connection
    if session.as_json:
        print_json({"address": connection.address, "status": status, "identity": identity})
    else:
        print_lines(lines(status, identity, connection.address, datetime.now(UTC)))
    if check and status.warnings:
        sys.exit(1)


def lines(status: Status, identity: Identity, address: str, now: datetime) -> Iterator[Line]:
    """Return the lines that describe a scheduler."""
    stopping = ", stopping: it accepts no more jobs" if status.stopping else ""
    started = f"started {ago(status.started, now)}"
    yield words(f"gavel {status.version} at {address}, {started}{stopping}", "bold")
    yield words(f"  policy  {status.policy}; round {status.round}{_round_ends(status, now)}")
    yield words(f"  GPUs    {status.gpus_busy} of {status.gpus} busy, on {count_of(status.nodes, 'node')}")
    counts = [f"{count} {state}" for state, count in sorted(status.jobs.items()) if count]
    yield words(f"  jobs    {', '.join(counts) or 'none'}")
    expires = ""
    if identity.expires is not None:
        left = span((identity.expires - now).total_seconds())
        expires = f", until {identity.expires.astimezone().date()} ({left} left)"
    yield words(f"  you     {identity.user}, {identity.role.value}{expires}")
    if status.data_dir:
        yield words(f"  data    {status.data_dir}")
    for warning in status.warnings:
        yield words(f"  warning: {warning}", "yellow")


def _round_ends(status: Status, now: datetime) -> str:
    if status.round_ends is None or not status.round:
        return ""
    return f", {'ends' if status.round_ends > now else 'ended'} {ago(status.round_ends, now)}"
