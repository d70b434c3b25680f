"""`gavel policy`: which one divides the cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from gavel.cli.io.session import print_json, scheduler
from gavel.cli.io.units import ago
from gavel.cli.io.wording import count_of, printable


def get(as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel policy get`."""
    with scheduler(address, context) as client:
        policy, allocation = client.policy(), client.allocation()
    if as_json:
        print_json({"policy": policy.policy, "available": policy.available, "allocation": allocation})
        return
    click.echo(printable(policy.policy))
    if not allocation.number:
        click.echo("  no allocation has been made yet")
        return
    made = f"  last allocation: number {allocation.number}, by {allocation.policy}"
    shares = f", {count_of(len(allocation.shares), 'share')}"
    sure = "" if allocation.optimal else ", the best found in the time given"
    click.echo(printable(f"{made}, {ago(allocation.adopted, datetime.now(UTC))}{shares}{sure}"))
    if allocation.failed:
        click.echo(printable(f"  first come, first served, because the solver failed: {allocation.failed}"))
    for note in allocation.notes:
        click.echo(f"  {printable(note)}")


def set_(spec: str, as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel policy set`."""
    with scheduler(address, context, changes=True) as client:
        policy = client.set_policy(spec)
    if as_json:
        print_json(policy)
    else:
        click.echo(f"{printable(policy.policy)}, from the next allocation on")
