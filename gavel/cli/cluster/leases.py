"""`gavel leases`: lists the leases of all jobs, or those on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.durations import moment_before
from gavel.cli.io.options import limit_option
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column
from gavel.cli.jobs.timeline import end_words
from gavel.client.views.job_text import few
from gavel.client.views.units import span

if TYPE_CHECKING:
    from gavel.client.results import LeaseRecord

COLUMNS = (
    Column("job"),
    Column("attempt", right=True),
    Column("started"),
    Column("ran", right=True),
    Column("on", width_max=14),
    Column("nodes", width_max=24),
    Column("end"),
)


@click.command()
@click.option("--node", default="", metavar="NODE", help="Only leases on GPUs of this node.")
@click.option(
    "--since",
    default="1d",
    show_default=True,
    metavar="WHEN",
    help="Only leases that ended after this time, or in the last 2h.",
)
@click.option("--until", metavar="WHEN", help="Only leases granted before this time.  [default: now]")
@limit_option(40, "leases")
@LIVE
def leases(node: str, since: str, until: str | None, limit: int, session: Session) -> None:
    """List leases: those that have not ended, then the others, the latest end first.

    A lease is a turn of a job on certain GPUs. `gavel show --timeline` lists those of one job, with their steps.
    """
    begin = moment_before("--since", since)
    end = moment_before("--until", until) if until else None
    with session.client() as client:
        listed = client.leases(since=begin, until=end, node=node, limit=limit)
    session.show(listed, COLUMNS, [_row(lease) for lease in listed], "no leases in that period")


def _row(lease: LeaseRecord) -> tuple[Any, ...]:
    began = lease.started or lease.granted
    assert began is not None
    return (
        lease.job,
        str(lease.attempt),
        f"{began.astimezone():%Y-%m-%d %H:%M:%S}",
        span(lease.run_s) if lease.started else "",
        f"{lease.worker_type}×{len(lease.gpus)}",
        few(lease.nodes) + (f" with {lease.with_job}" if lease.with_job else ""),
        end_words(lease),
    )
