"""The leases of a job as a table: `gavel show --timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gavel.cli.io.tables import Column, show_table
from gavel.client.views.job_text import few
from gavel.client.views.units import local_time, short_number, span

if TYPE_CHECKING:
    from gavel.client.results import LeaseRecord

COLUMNS = (
    Column("attempt", right=True),
    Column("started"),
    Column("ran", right=True),
    Column("on", width_max=14),
    Column("nodes", width_max=24),
    Column("steps", right=True),
    Column("lost", right=True),
    Column("steps/s", right=True),
    Column("end"),
)
PLAN = Column("plan", width_max=12)


def show_timeline(leases: Sequence[LeaseRecord]) -> None:
    """Print the leases of a job, the first one first. Jobs with plans have a column for them."""
    has_plans = any(lease.plan for lease in leases)
    columns = [*COLUMNS[:5], *([PLAN] if has_plans else []), *COLUMNS[5:]]
    show_table(columns, [_row(lease, has_plans) for lease in leases])


def _row(lease: LeaseRecord, has_plans: bool) -> Sequence[str]:
    return (
        str(lease.attempt),
        local_time(lease.started or lease.granted),
        span(lease.run_s) if lease.started else "",
        f"{lease.worker_type}×{len(lease.gpus)}",
        few(lease.nodes) + (f" with {lease.with_job}" if lease.with_job else ""),
        *([lease.plan] if has_plans else []),
        f"+{short_number(lease.steps_made)}" if lease.steps_made else "",
        short_number(lease.steps_lost) if lease.steps_lost else "",
        short_number(lease.rate) if lease.rate else "",
        end_words(lease),
    )


def end_words(lease: LeaseRecord) -> str:
    """Return whether a lease runs, or why it ended."""
    if lease.ended is None:
        if lease.why:
            return f"stopping: {lease.why}"
        return "running" if lease.started else "starting"
    if lease.outcome == "yielded" and lease.why:
        return lease.why
    return ": ".join(filter(None, (OUTCOMES.get(lease.outcome, lease.outcome), lease.why)))


# How a lease ended, in words; `why` says more.
OUTCOMES = {"yielded": "saved and stopped", "node_failed": "lost", "dropped": "not started"}
