"""`gavel usage`: shows GPU time and cost, and which part of the GPU time was useful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from gavel.cli.faults import Fault
from gavel.cli.io.durations import moment_before
from gavel.cli.io.outputs import say, write_csv
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column
from gavel.client.views.units import hours, local_time

if TYPE_CHECKING:
    from datetime import datetime

    from gavel.client import UsageRow
    from gavel.client.calls import By, GpuTimeBy
    from gavel.client.results import GpuTimeRow

# Groups for which only the time of GPUs by kind is known, and their columns.
OF_NODES = ("type", "node", "day")
KINDS = ("held", "useful", "restart", "lost", "idle")
REST = ("free", "drained", "broken", "unreachable")
NOTHING = "no GPU time in that period"


@click.command()
@click.option(
    "--by",
    type=click.Choice(["user", "tenant", "job_type", *OF_NODES]),
    default="user",
    show_default=True,
    help="What each row stands for; type: of GPUs; day: in UTC. The last three imply --kind.",
)
@click.option("--kind", is_flag=True, help="Divide GPU time into useful, restart, lost and idle.")
@click.option("-u", "--user", default="", metavar="USER", help="Only the usage of this user.")
@click.option(
    "--since",
    default="30d",
    show_default=True,
    metavar="WHEN",
    help="The start: a time, or 7d for 7 days ago.",
)
@click.option("--until", metavar="WHEN", help="The end.  [default: now]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@LIVE
def usage(
    by: str,
    kind: bool,
    user: str,
    since: str,
    until: str | None,
    as_csv: bool,
    session: Session,
) -> None:
    """Show GPU time and cost.

    With --kind, show how GPUs were used, as far back as the scheduler keeps leases. Held is the time from when GPUs
    were given to jobs until they were free again. It is useful (steps that lasted), restart (start-up, restoring and
    saving checkpoints), lost (steps to be done again after a failure or a kill) or idle (GPUs that did nothing for
    long).
    """
    if as_csv and session.as_json:
        raise Fault("--csv and --json exclude each other")
    start = moment_before("--since", since)
    end = moment_before("--until", until) if until else None
    if kind or by in OF_NODES:
        _show_kinds(cast("GpuTimeBy", by), start, end, user, as_csv, session)
        return
    with session.client() as client:
        rows = client.usage(cast("By", by), since=start, until=end, user=user)
    types = sorted({name for row in rows for name in row.gpu_s})
    if as_csv:
        header = (by, *(f"gpu_s:{name}" for name in types), "cost", "jobs", "completed", "failed")
        lines = [
            (
                row.who,
                *[row.gpu_s.get(name, 0.0) for name in types],
                row.cost,
                row.jobs,
                row.completed,
                row.failed,
            )
            for row in rows
        ]
        write_csv("--csv", "-", header, lines)
        return
    columns = _columns(by, *types, "GPU time", "cost", "jobs", "completed", "failed")
    session.show(rows, columns, [_row(row, types) for row in rows], NOTHING)


def _columns(by: str, *numbers: str) -> list[Column]:
    return [Column(by.replace("_", " "), width_max=24), *(Column(head, right=True) for head in numbers)]


def _row(row: UsageRow, types: Sequence[str]) -> tuple[Any, ...]:
    return (
        row.who or "-",
        *[hours(row.gpu_s[name]) if name in row.gpu_s else "" for name in types],
        hours(sum(row.gpu_s.values())),
        f"{row.cost:,.2f}",
        *(str(row.jobs), str(row.completed), str(row.failed)),
    )


def _show_kinds(
    by: GpuTimeBy, since: datetime, until: datetime | None, user: str, as_csv: bool, session: Session
) -> None:
    with session.client() as client:
        answer = client.gpu_time(by, since=since, until=until, user=user)
    rows = answer.rows
    has_whole = any(row.whole is not None for row in rows)
    if as_csv:
        kinds = [*KINDS, *(("shared", *REST, "all") if has_whole else ())]
        lines = [(row.name, *[round(_seconds(row)[f"{name}_s"], 3) for name in kinds]) for row in rows]
        write_csv("--csv", "-", (by, *(f"{name}_s" for name in kinds)), lines)
    else:
        columns = _columns(by, *KINDS, "useful %", *(REST if has_whole else ()))
        session.show(rows, columns, [_kinds(row, has_whole) for row in rows], NOTHING)
    is_asked = (
        click.get_current_context().get_parameter_source("since") is not click.core.ParameterSource.DEFAULT
    )
    if is_asked and answer.since is not None and (answer.since - since).total_seconds() > 1:
        say(f"the history begins at {local_time(answer.since)}")


def _seconds(row: GpuTimeRow) -> dict[str, float]:
    values = asdict(row)
    return {**values, **(values.pop("whole") or {})}


def _kinds(row: GpuTimeRow, has_whole: bool) -> tuple[Any, ...]:
    seconds = _seconds(row)
    rest = [hours(seconds[f"{name}_s"]) for name in REST] if has_whole else []
    part = f"{100 * row.useful_s / row.held_s:.0f} %" if row.held_s else ""
    return (row.name or "-", *[hours(seconds[f"{name}_s"]) for name in KINDS], part, *rest)
