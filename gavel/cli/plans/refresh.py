"""`gavel plan --refresh JOB`: the automatic plans of a job, computed again for the cluster as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import say
from gavel.cli.io.quiet_grpc import load_quiet_grpc
from gavel.cli.io.session import Session, print_json
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.wording import count_of
from gavel.client.views.job_text import ids
from gavel.client.views.units import short_number

if TYPE_CHECKING:
    from gavel.client.plans.refreshing import PlanChange, PlansRefreshed

COLUMNS = (
    Column("  "),
    Column("type"),
    Column("GPUs", right=True),
    Column("plan"),
    Column("steps/s", right=True),
)


def check_alone() -> None:
    """Refuse options that have no effect with --refresh."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in ("refreshed_job", "as_json", "address", "context"):
            continue
        if context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE:
            name = "PROFILE" if isinstance(parameter, click.Argument) else parameter.opts[0]
            raise Fault(f"{name} has no effect with --refresh")


def refresh(session: Session, job: str) -> None:
    """Compute the plans of a job or an array again, update it, and print what has changed."""
    from gavel.cli.io.progress import bar

    load_quiet_grpc()
    with session.client(changes=True) as client, bar("planning") as show:
        results = client.refresh_plans(job, lambda words, done, total: show(words, done / total))
    if session.as_json:
        print_json({"jobs": results})
        return
    for note in dict.fromkeys(note for result in results for note in result.notes):
        say(note)
    for jobs, result in _grouped(results):
        click.echo(f"{ids(jobs)}: {_summary(result)}")
        if result.changes:
            show_table(COLUMNS, [_row(change) for change in result.changes])


def _grouped(results: Sequence[PlansRefreshed]) -> list[tuple[list[str], PlansRefreshed]]:
    """Return the results, those of jobs with the same changes as one."""
    groups: dict[tuple[object, ...], tuple[list[str], PlansRefreshed]] = {}
    for result in results:
        groups.setdefault((result.changes, result.plans), ([], result))[0].append(result.job)
    return list(groups.values())


def _summary(result: PlansRefreshed) -> str:
    counts = [
        f"{number} {outcome}"
        for outcome in ("added", "dropped", "changed", "kept")
        if (number := sum(change.outcome == outcome for change in result.changes))
    ]
    return f"{count_of(result.plans, 'plan')}, {', '.join(counts) or 'all as before'}"


def _row(change: PlanChange) -> tuple[str, ...]:
    before, after = change.label_before, change.label
    label = f"{before} → {after}" if before and after and before != after else after or before
    rates = [short_number(rate) for rate in (change.rate_before, change.rate) if rate]
    outcome = change.outcome + (" (in use)" if change.outcome == "kept" else "")
    return f"  {outcome}", change.worker_type, str(change.gpus), label, " → ".join(dict.fromkeys(rates))
