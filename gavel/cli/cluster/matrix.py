"""`gavel matrix`: shows what jobs or tenants were due lately, and what they received, by worker type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gavel.cli.io.options import limit_option
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column
from gavel.client.views.units import hours

if TYPE_CHECKING:
    from gavel.client.results import MatrixCell, MatrixRow

JOB, NAME, TENANT = Column("job"), Column("name", width_max=20), Column("tenant", width_max=24)
JOBS, GAP = Column("jobs", right=True), Column("gap", right=True)


@click.command()
@click.option(
    "--by", type=click.Choice(["job", "tenant"]), default="job", show_default=True, help="A row for each."
)
@click.option("--tenant", default="", metavar="TENANT", help="Only this tenant and those below it.")
@limit_option(40, "rows")
@LIVE
def matrix(by: str, tenant: str, limit: int, session: Session) -> None:
    """Show the recent GPU time that jobs were due by the policy and received, by worker type.

    A cell shows the time received / due, and after + the number of GPUs on which the job runs now. Jobs furthest behind
    come first. Times are the sums by which rounds are planned: after 20 rounds (setting `half_life_rounds`), time
    counts half. `gavel shares` has the full time of any period.
    """
    with session.client() as client:
        rows = client.matrix(by_tenant=by == "tenant", tenant=tenant, limit=limit)
    types = sorted({cell.worker_type for row in rows for cell in row.cells})
    subject = (TENANT, JOBS) if by == "tenant" else (JOB, NAME, TENANT)
    columns = (*subject, GAP, *(Column(kind, right=True) for kind in types))
    session.show(
        rows, columns, [_row(row, by, types) for row in rows], "no GPU time was due or received recently"
    )


def _row(row: MatrixRow, by: str, types: Sequence[str]) -> Sequence[str]:
    tenant = row.tenant or "-"
    cells = {cell.worker_type: _cell(cell) for cell in row.cells}
    gap = f"{'-' if row.gap_s < 0 else '+'}{hours(abs(row.gap_s))}"
    return (
        *((tenant, f"{row.jobs:,}") if by == "tenant" else (row.job, row.name, tenant)),
        gap,
        *(cells.get(kind, "") for kind in types),
    )


def _cell(cell: MatrixCell) -> str:
    gpus = f" +{cell.gpus}" if cell.gpus else ""
    return f"{hours(cell.received_s)} / {hours(cell.due_s)}{gpus}"
