"""`gavel rounds`: lists past rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.durations import moment_before
from gavel.cli.io.options import limit_option
from gavel.cli.io.outputs import check_file, check_one_stdout, write_json
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column
from gavel.client.views.chrome_trace import chrome_trace
from gavel.client.views.units import duration, local_time, span

if TYPE_CHECKING:
    from gavel.client.results import RoundRecord

COLUMNS = (
    Column("round", right=True),
    Column("starts"),
    Column("length", right=True),
    *(Column(head, right=True) for head in ("new", "renewed", "ended", "skipped")),
    Column("solved in", right=True),
    Column("policy"),
)


@click.command()
@click.option("--since", metavar="WHEN", help="Only rounds since this time, or 2h for the last 2 hours.")
@click.option("--until", metavar="WHEN", help="Only rounds that began before this time.  [default: now]")
@limit_option(20, "rounds")
@click.option(
    "--trace",
    metavar="FILE",
    help="Also write these rounds and their leases to this file, as lanes of GPUs in the Chrome trace format; "
    "https://ui.perfetto.dev shows it.",
)
@LIVE
def rounds(since: str | None, until: str | None, limit: int, trace: str | None, session: Session) -> None:
    """List rounds, the latest first: how many leases began, continued and ended, and how long the solver took.

    A lease is a turn of a job on certain GPUs. Skipped are jobs whose turn it was, but which did not fit.
    """
    begin = moment_before("--since", since) if since else None
    end = moment_before("--until", until) if until else None
    check_one_stdout({"--trace": trace}, never=["--trace"])
    check_file("--trace", trace)
    with session.client() as client:
        listed = client.past_rounds(since=begin, until=end, limit=limit)
        if trace is not None and listed:
            leases = client.leases(since=listed[-1].planned, until=listed[0].ends, limit=None)
            write_json("--trace", trace, chrome_trace(listed, leases))
    session.show(listed, COLUMNS, [_row(entry) for entry in listed], "no rounds in that period")


def _row(entry: RoundRecord) -> tuple[Any, ...]:
    assert entry.starts is not None
    assert entry.ends is not None
    failed = f" failed: {entry.failed}" if entry.failed else ""
    return (
        str(entry.number),
        local_time(entry.starts),
        span((entry.ends - entry.starts).total_seconds()),
        *(f"{count:,}" for count in (entry.granted, entry.renewed, entry.ended, entry.skipped)),
        "" if entry.solve_s is None else duration(entry.solve_s),
        f"{entry.policy}{failed}",
    )
