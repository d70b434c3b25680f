"""`gavel usage`: shows GPU time and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from gavel.cli.io.durations import moment_before
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column
from gavel.client.views.units import hours

if TYPE_CHECKING:
    from gavel.client import UsageRow


@click.command()
@click.option(
    "--by",
    type=click.Choice(["user", "tenant", "job_type"]),
    default="user",
    show_default=True,
    help="What each row stands for.",
)
@click.option("-u", "--user", default="", metavar="USER", help="Only the usage of this user.")
@click.option(
    "--since",
    default="30d",
    show_default=True,
    metavar="WHEN",
    help="The start: a time, or 7d for 7 days ago.",
)
@click.option("--until", metavar="WHEN", help="The end.  [default: now]")
@LIVE
def usage(
    by: Literal["user", "tenant", "job_type"],
    user: str,
    since: str,
    until: str | None,
    session: Session,
) -> None:
    """Show GPU time and cost."""
    start = moment_before("--since", since)
    end = moment_before("--until", until) if until else None
    with session.client() as client:
        rows = client.usage(by, since=start, until=end, user=user)
    kinds = sorted({kind for row in rows for kind in row.gpu_s})
    numbers = (*kinds, "GPU time", "cost", "jobs", "completed", "failed")
    columns = [Column(by.replace("_", " "), width_max=24), *(Column(head, right=True) for head in numbers)]
    session.show(rows, columns, [_row(row, kinds) for row in rows], "no GPU time in that period")


def _row(row: UsageRow, kinds: Sequence[str]) -> tuple[Any, ...]:
    return (
        row.who or "-",
        *[hours(row.gpu_s[kind]) if kind in row.gpu_s else "" for kind in kinds],
        hours(sum(row.gpu_s.values())),
        f"{row.cost:,.2f}",
        *(str(row.jobs), str(row.completed), str(row.failed)),
    )
