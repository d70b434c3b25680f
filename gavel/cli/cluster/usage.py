"""`gavel usage`: GPU time and cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import click

from gavel.cli.io.session import print_json, scheduler
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.units import hours, moment_before
from gavel.client.results import UsageRow


def usage(
    by: Literal["user", "tenant", "job_type"],
    user: str,
    since: str,
    until: str | None,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The command's body."""
    start: datetime = moment_before("--since", since)
    end = moment_before("--until", until) if until else None
    with scheduler(address, context) as client:
        rows = client.usage(by, since=start, until=end, user=user)
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("nothing was used in that time", err=True)
        return
    kinds = sorted({kind for row in rows for kind in row.gpu_s})
    right = [Column(kind, right=True) for kind in kinds]
    heads = (
        Column(by.replace("_", " "), most=24),
        *right,
        *(Column("GPU time", True), Column("cost", True), Column("jobs", True)),
        *(Column("completed", True), Column("failed", True)),
    )
    show_table(heads, [_row(row, kinds) for row in rows])


def _row(row: UsageRow, kinds: Sequence[str]) -> tuple[Any, ...]:
    return (
        row.who or "-",
        *[hours(row.gpu_s[kind]) if kind in row.gpu_s else "" for kind in kinds],
        hours(sum(row.gpu_s.values())),
        f"{row.cost:,.2f}",
        *(str(row.jobs), str(row.completed), str(row.failed)),
    )
