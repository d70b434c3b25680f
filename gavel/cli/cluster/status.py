"""`gavel status`: how the scheduler is, and who one is to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.text import Text

from gavel.cli.io.session import print_json, scheduler
from gavel.cli.io.tables import out
from gavel.cli.io.units import ago, span
from gavel.cli.io.wording import count_of, printable
from gavel.client.results import Identity, Status


def status(check: bool, as_json: bool, address: str | None, context: str | None) -> None:
    """The command's body."""
    with scheduler(address, context) as client:
        found, who, where = client.status(), client.who_am_i(), client.connection
    if as_json:
        print_json({"address": where.address, "status": found, "identity": who})
    else:
        console = out()
        for line in lines(found, who, where.address, datetime.now(UTC)):
            console.print(line)
    if check and found.warnings:
        sys.exit(1)


def lines(found: Status, who: Identity, address: str, now: datetime) -> Iterator[Text]:
    """For people."""
    stopping = ", stopping: it takes no more jobs" if found.stopping else ""
    yield Text(
        f"gavel {found.version} at {address}, started {ago(found.started, now)}{stopping}", style="bold"
    )
    left = "" if found.round_ends is None else f", {'ends' if found.round_ends > now else 'ended'} "
    left += "" if found.round_ends is None else ago(found.round_ends, now)
    yield Text(f"  policy  {printable(found.policy)}; round {found.round}{left if found.round else ''}")
    yield Text(f"  GPUs    {found.gpus_busy} of {found.gpus} busy, on {count_of(found.nodes, 'node')}")
    counts = [f"{count} {state}" for state, count in sorted(found.jobs.items()) if count]
    yield Text(f"  jobs    {', '.join(counts) or 'none'}")
    expires = ""
    if who.expires is not None:
        expires = (
            f", until {who.expires.astimezone().date()} ({span((who.expires - now).total_seconds())} left)"
        )
    yield Text(f"  you     {printable(who.user)}, {who.role.value}{expires}")
    if found.data_dir:
        yield Text(f"  data    {printable(found.data_dir)}")
    for warning in found.warnings:
        yield Text(f"  warning: {printable(warning)}", style="yellow")
