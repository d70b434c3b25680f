"""`gavel notify`: list and test the channels of notifications."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.tables import Column
from gavel.client.views.units import ago

if TYPE_CHECKING:
    from gavel.client.results import Channel

COLUMNS = (
    Column("channel", width_max=24),
    Column("jobs"),
    Column("url", width_max=40),
    Column("waiting", right=True),
    Column("last success"),
    Column("last failure"),
    Column("events"),
)


@click.group()
def notify() -> None:
    """List and test the channels to which the scheduler sends notifications.

    Operators define channels as [[notify]] in the scheduler's settings (docs/notifications.md).
    """


@notify.command("list")
@LIVE
def list_(session: Session) -> None:
    """List the channels, without their secrets.

    Operators see all, with what waits for them, and without the paths of their URLs. Users see the names of those that
    `gavel submit --notify` accepts.
    """
    with session.client() as client:
        channels = client.channels()
    session.show(channels, COLUMNS, [_row(channel) for channel in channels], "no channels")


def _row(channel: Channel) -> tuple[str, ...]:
    now = datetime.now(UTC)
    failure = ago(channel.failed, now) if channel.failed else ""
    return (
        channel.name,
        "yes" if channel.for_jobs else "no",
        channel.url,
        f"{channel.waiting:,}",
        ago(channel.succeeded, now) if channel.succeeded else "",
        f"{failure}: {channel.error}" if channel.error else failure,
        ", ".join(channel.events),
    )


@notify.command()
@click.argument("channel")
@LIVE
def test(channel: str, session: Session) -> None:
    """Send a test message to CHANNEL.

    If the receiver confirms it, what waits for the channel is sent, too; otherwise, the exit code is 1.
    """
    with session.client(changes=True) as client:
        error = client.test_channel(channel)
    if session.as_json:
        print_json({"channel": channel, "error": error})
    elif error:
        say(f"channel {channel} did not confirm the test: {error}")
    else:
        say(f"channel {channel} confirmed the test")
    sys.exit(1 if error else 0)
