"""`gavel shares`: shows what tenants were due, and what they received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.durations import length_s, moment_before
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.tables import Column, show_table
from gavel.client.views.units import hours, local_time

if TYPE_CHECKING:
    from gavel.client.results import Account

COLUMNS = (
    Column("tenant", width_max=24),
    Column("type", width_max=16),
    *(Column(head, right=True) for head in ("due", "received", "gap", "received/due")),
)
STEP = Column("from")


@click.command()
@click.option(
    "--since",
    default="1d",
    show_default=True,
    metavar="WHEN",
    help="The start: a time, or 7d for 7 days ago.",
)
@click.option("--until", metavar="WHEN", help="The end.  [default: now]")
@click.option(
    "--step", metavar="TIME", help="Show each step of this length, such as 1h.  [default: one step]"
)
@click.option("--tenant", default="", metavar="TENANT", help="Only this tenant and those below it.")
@LIVE
def shares(since: str, until: str | None, step: str | None, tenant: str, session: Session) -> None:
    """Show the GPU time that tenants were due by the policy, and what they received, by worker type.

    Packed jobs count all of their GPUs. A tenant may receive less than its due if its jobs do not fit into the rounds,
    and more if GPUs would be idle otherwise.
    """
    start, end = moment_before("--since", since), moment_before("--until", until) if until else None
    step_s = length_s("--step", step) if step else 0.0
    with session.client() as client:
        shares = client.shares(since=start, until=end, step_s=step_s, tenant=tenant)
    if session.as_json:
        print_json(shares)
    elif shares.accounts:
        columns = (STEP, *COLUMNS) if step else COLUMNS
        show_table(columns, [_row(account, bool(step)) for account in shares.accounts])
    else:
        say("no GPU time was due or received in that period")


def _row(account: Account, has_steps: bool) -> Sequence[Any]:
    gap_s = account.received_s - account.due_s
    return (
        *([local_time(account.starts)] if has_steps else []),
        account.tenant or "-",
        account.worker_type,
        hours(account.due_s),
        hours(account.received_s),
        f"{'-' if gap_s < 0 else '+'}{hours(abs(gap_s))}",
        f"{account.received_s / account.due_s:.2f}" if account.due_s else "",
    )
