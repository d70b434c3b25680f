"""`gavel queue`: jobs as a table, as JSON, or each change as it comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any

import click

from gavel.cli.io.job_text import few, job_on, job_progress, job_ran_s, job_waited_s, job_where, state_text
from gavel.cli.io.session import print_json, print_line, scheduler
from gavel.cli.io.tables import Column, out, show_table, table, terminal_width
from gavel.cli.io.units import age, moment_before, span
from gavel.cli.io.wording import count_of, printable
from gavel.client import Client, Job, JobFilter
from gavel.client.jobs.spec import NOT_IN_LISTS
from gavel.client.reading import plain
from gavel.client.results import ACTIVE

COLUMNS = (
    Column("id", right=True, most=12),
    Column("name", most=18),
    Column("user", most=10),
    Column("state"),
    Column("GPUs", most=14),
    Column("done", right=True, most=11),
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
# How many ended jobs stand below the others.
LAST_ENDED = 5


def queue(
    everybody: bool,
    ended: bool,
    since: str | None,
    limit: int,
    watch: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
    **filters: Any,
) -> None:
    """The command's body."""
    with scheduler(address, context) as client:
        filters["ended_since" if ended else "submitted_since"] = (
            moment_before("--since", since) if since else None
        )
        wanted = job_filter(client, everybody=everybody, ended=ended, **filters)
        if watch:
            _watch(client, wanted, as_json)
            return
        page = list(islice(client.list(wanted, page_size=min(limit + 1, 1000), brief=True), limit + 1))
        if as_json:
            print_json([as_listed(job) for job in page[:limit]])
            return
        _show(client, wanted, page, limit)
        if tuple(wanted.states) == ACTIVE:
            _show_last_ended(client, wanted)


def as_listed(job: Job) -> dict[str, Any]:
    """For programs: what a list does not have is not there, rather than empty."""
    said: dict[str, Any] = plain(job)
    del said["last_lines"]
    for name in NOT_IN_LISTS:
        del said["spec"][name]
    return said


def job_filter(client: Client, *, everybody: bool = False, active: bool = True, **said: Any) -> JobFilter:
    """Yours that have not ended, as far as nothing else is said."""
    user, states = said.pop("user"), said.pop("states")
    if user is None and not everybody:
        user = client.who_am_i().user
    if not states and active and said.get("submitted_since") is None and not said.get("ended"):
        states = ACTIVE
    return JobFilter(states=states, user=user or "", **said)


def rows(jobs: Sequence[Job], now: datetime) -> list[tuple[Any, ...]]:
    """A row of COLUMNS for each job."""
    return [(*_who(job), job_progress(job), *_times(job, now), job_where(job)) for job in jobs]


def ended_rows(jobs: Sequence[Job], now: datetime) -> list[tuple[Any, ...]]:
    """A row of ENDED_COLUMNS for each job; of those that have not ended, too."""
    return [
        (
            *_who(job),
            *_times(job, now),
            age(job.ended, now),
            f"{job.cost:,.2f}" if job.cost else "",
            job_where(job),
        )
        for job in jobs
    ]


def _who(job: Job) -> tuple[Any, ...]:
    return job.id, job.spec.name or job.spec.job_type, job.spec.user, state_text(job.state), job_on(job)


def _times(job: Job, now: datetime) -> tuple[str, str]:
    ran_s = job_ran_s(job, now)
    return span(job_waited_s(job, now)), span(ran_s) if ran_s else ""


def _show(client: Client, wanted: JobFilter, jobs: Sequence[Job], limit: int) -> None:
    if not jobs:
        click.echo(_unknown_place(client, wanted) or _nothing(wanted), err=True)
        return
    _show_jobs(jobs[:limit])
    if len(jobs) > limit:
        total = client.page(wanted, size=1, brief=True).total
        click.echo(f"and {count_of(total - limit, 'more job') if total else 'more'}: --limit", err=True)


def _show_jobs(jobs: Sequence[Job]) -> None:
    now = datetime.now(UTC)
    if any(job.ended for job in jobs):
        show_table(ENDED_COLUMNS, ended_rows(jobs, now))
    else:
        show_table(COLUMNS, rows(jobs, now))


def _show_last_ended(client: Client, wanted: JobFilter) -> None:
    """What has ended last, below what has not."""
    jobs = client.page(replace(wanted, states=(), ended=True), size=LAST_ENDED, brief=True).jobs
    if jobs:
        click.echo("\nended last (`gavel queue --ended` shows all):", err=True)
        _show_jobs(jobs)


def _nothing(wanted: JobFilter) -> str:
    """That there is nothing to show, and what to say to see more."""
    more = ["`-a` shows those of all users"] if wanted.user else []
    whose = f"of {wanted.user} " if wanted.user else ""
    return "; ".join([f"no jobs {whose}fit", ", ".join(more)] if more else [f"no jobs {whose}fit"])


def _unknown_place(client: Client, wanted: JobFilter) -> str:
    """That there is no such node or worker type, where that is why there is nothing to show."""
    if not (wanted.node or wanted.worker_type):
        return ""
    nodes = client.nodes()
    for what, said, known in (
        ("node", wanted.node, {node.name for node in nodes}),
        ("worker type", wanted.worker_type, {node.worker_type for node in nodes}),
    ):
        if said and said not in known:
            there = sorted(get_close_matches(said, known) or known)
            return f"no jobs fit: there is no {what} '{printable(said)}'; there is {printable(few(there, 8)) or 'none'}"
    return ""


def _watch(client: Client, wanted: JobFilter, as_json: bool) -> None:
    """Those that are there as a table, then a line for each change; as JSON one line each.

    People leave it open for days: it begins anew when the scheduler has been away.
    """
    client.status()  # nobody there is told at once
    present: list[Job] = []
    for event in client.watch(wanted, patience_s=math.inf):
        if as_json:
            print_line(event)
        elif event.all_present:
            show_table(COLUMNS, rows(list(reversed(present)), datetime.now(UTC)))
            present.clear()
        elif event.job is not None and event.present:
            present.append(event.job)
        elif event.job is not None:
            out().print(table(COLUMNS, rows([event.job], datetime.now(UTC)), terminal_width())[1])
