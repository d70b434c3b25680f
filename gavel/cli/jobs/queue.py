"""`gavel queue`: jobs as a table, as JSON, or as a stream of changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.durations import moment_before
from gavel.cli.io.lines import print_lines
from gavel.cli.io.options import FILTERS, limit_option
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, print_json, print_line
from gavel.cli.io.tables import Column, show_table, state_text, table, terminal_width
from gavel.cli.io.wording import count_of
from gavel.client.views.job_text import few

if TYPE_CHECKING:
    from gavel.client import Client, Job, JobFilter, Queue

COLUMNS = (
    Column("id", right=True, width_max=12),
    Column("name", width_max=18),
    Column("user", width_max=10),
    Column("state"),
    Column("GPUs", width_max=14),
    Column("done", right=True, width_max=11),
    Column("waited", right=True),
    Column("ran", right=True),
    Column("where, why"),
)
ENDED_COLUMNS = (
    *COLUMNS[:5],
    *COLUMNS[6:8],
    Column("ended", right=True),
    Column("cost", right=True),
    Column("where, why"),
)
# Before the last column, if a job runs by a plan.
PLAN = Column("plan", width_max=24)
# How many ended jobs are listed below the others.
LAST_ENDED = 5


@click.command()
@click.option("-a", "--all-users", is_flag=True, help="List the jobs of all users.")
# The former name of --all-users.
@click.option("--all", "all_", is_flag=True, hidden=True)
@FILTERS
@click.option(
    "--ended",
    is_flag=True,
    help="Ended jobs, however long ago: when, where, how long, at what cost, and why.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Only jobs submitted (with --ended: ended) since this time, or 2d for the last 2 days.",
)
@limit_option(1000, "jobs")
@click.option("-w", "--watch", is_flag=True, help="List the jobs, then print each change.")
@LIVE
def queue(
    all_users: bool,
    all_: bool,
    ended: bool,
    since: str | None,
    limit: int,
    watch: bool,
    session: Session,
    **filters: Any,
) -> None:
    """List jobs: by default your unfinished ones and, below, those that ended last.

    Filters such as --node narrow this list; --user, --state, --since and --ended replace its defaults. The newest job
    comes first.
    """
    if since:
        filters["ended_since" if ended else "submitted_since"] = moment_before("--since", since)
    with session.client() as client:
        # The list that `--watch` begins with comes from its own stream.
        queue = client.queue(
            job_filter(ended=ended, **filters), all_users=all_users or all_, limit=1 if watch else limit
        )
        if watch:
            _watch(client, queue.wanted, session.as_json)
        elif session.as_json:
            print_json([as_listed(job) for job in queue])
        else:
            _show(client, queue)
            if queue.wanted.states and not filters["states"]:
                _show_last_ended(client, queue.wanted)


def job_filter(*, user: str | None, **conditions: Any) -> JobFilter:
    """Return the filter of the options."""
    from gavel.client import JobFilter

    return JobFilter(user=user or "", **conditions)


def as_listed(job: Job) -> dict[str, Any]:
    """Return a job as `--json` prints it, without the fields that lists omit."""
    from gavel.client.reading import NOT_IN_LISTS, plain

    listed: dict[str, Any] = plain(job)
    del listed["last_lines"]
    for name in NOT_IN_LISTS:
        del listed["spec"][name]
    return listed


def columns(ended: bool, plans: bool) -> tuple[Column, ...]:
    """Return COLUMNS or ENDED_COLUMNS; with `plans`, also the plan by which a job runs."""
    usual = ENDED_COLUMNS if ended else COLUMNS
    return (*usual[:-1], PLAN, usual[-1]) if plans else usual


def plan_of(job: Job) -> str:
    """Return the label of the plan by which a job runs; empty if there is none."""
    return job.placement.plan if job.placement else ""


def rows(jobs: Sequence[Job], now: datetime, ended: bool, plans: bool) -> list[tuple[Any, ...]]:
    """Return a row of `columns` for each job; with `ended`, even for a job that has not ended."""
    from gavel.client.views.queue_rows import STATE, cells

    listed = [cells(job, now, ended) for job in jobs]
    return [
        (
            *row[:STATE],
            state_text(job.state),
            *row[STATE + 1 : -1],
            *([plan_of(job)] if plans else []),
            row[-1],
        )
        for job, row in zip(jobs, listed, strict=True)
    ]


def _show(client: Client, queue: Queue) -> None:
    if not queue:
        say(_why_none(client, queue.wanted))
        return
    _show_jobs(queue)
    if queue.total is None:
        say("and more: --limit")
    elif queue.total > len(queue):
        say(f"and {count_of(queue.total - len(queue), 'more job')}: --limit")


def _show_jobs(jobs: Sequence[Job]) -> None:
    ended, plans = any(job.ended for job in jobs), any(plan_of(job) for job in jobs)
    show_table(columns(ended, plans), rows(jobs, datetime.now(UTC), ended, plans))


def _show_last_ended(client: Client, query: JobFilter) -> None:
    jobs = client.page(replace(query, states=(), ended=True), size=LAST_ENDED, brief=True).jobs
    if jobs:
        click.echo("\nended last (`gavel queue --ended` shows all):", err=True)
        _show_jobs(jobs)


def _why_none(client: Client, query: JobFilter) -> str:
    """Return why the list is empty: no such node or worker type, or no jobs of this user."""
    from difflib import get_close_matches

    nodes = client.nodes() if query.node or query.worker_type else ()
    for kind, name, existing in (
        ("node", query.node, {node.name for node in nodes}),
        ("worker type", query.worker_type, {node.worker_type for node in nodes}),
    ):
        if name and name not in existing:
            suggestions = sorted(get_close_matches(name, existing) or existing)
            return f"no jobs match: there is no {kind} '{name}'; there is {few(suggestions, 8) or 'none'}"
    return f"no jobs of {query.user} match; `-a` shows those of all users" if query.user else "no jobs match"


def _watch(client: Client, query: JobFilter, as_json: bool) -> None:
    """Show the present jobs as a table, then a line for each change; in JSON, one line each.

    After an outage of the scheduler of any length, the command reconnects, because users leave it open for days.
    """
    present: list[Job] = []
    plans = False
    for event in client.watch(query, patience_s=math.inf):
        if as_json:
            print_line(event)
        elif event.all_present:
            # The columns stay the same while the lines below are added.
            plans = any(plan_of(job) for job in present)
            show_table(columns(False, plans), rows(present[::-1], datetime.now(UTC), False, plans))
            present.clear()
        elif event.job is not None and event.present:
            present.append(event.job)
        elif event.job is not None:
            row = rows([event.job], datetime.now(UTC), False, plans)
            print_lines(table(columns(False, plans), row, terminal_width())[1:])
