"""`gavel submit --dry-run`: what would happen to each job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from gavel.cli.io.outputs import echo
from gavel.cli.io.session import OK, REFUSED, WRONG, print_json
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.wording import count_of
from gavel.client import Client, JobSpec, Preview
from gavel.client.jobs.errors import file_field
from gavel.client.jobs.spec import AutoPlans
from gavel.client.views.job_text import few
from gavel.client.views.units import ago, short_number

COLUMNS = (
    Column("  type"),
    Column("GPUs", right=True),
    Column("steps/s", right=True),
    Column("free", right=True),
    Column("nodes"),
)


def show_preview(client: Client, specs: Sequence[JobSpec], as_json: bool) -> int:
    """Show what would happen to each job, and return the exit code."""
    previews = client.preview(specs)
    if as_json:
        print_json(previews)
    else:
        now = datetime.now(UTC)
        for number, (spec, preview) in enumerate(zip(specs, previews, strict=True), 1):
            if number > 1:
                click.echo()
            _show(spec, preview, f"job {number}" if len(specs) > 1 else "job", now)
    refused = [preview for preview in previews if not preview.accepted]
    if not refused:
        return OK
    return WRONG if any(preview.refused_field for preview in refused) else REFUSED


def _show(spec: JobSpec, preview: Preview, title: str, now: datetime) -> None:
    if spec.name:
        title = f"{title} '{spec.name}'"
    if not preview.accepted:
        field = file_field(preview.refused_field)
        line = spec.source and spec.source.lines.get(field.partition(".")[0])
        where = f"{spec.source.file}: line {line}: " if spec.source and line else ""
        echo(f"{title}: would be refused: {where}{field}: {preview.refused_why}")
        return
    members = f", {count_of(len(spec.array), 'member')}" if spec.array else ""
    start = ""
    if preview.expected_start:
        start = (
            f"; expected start {'now' if preview.expected_start <= now else ago(preview.expected_start, now)}"
        )
    echo(f"{title}{members}: would be accepted{start}")
    for text in preview.text.splitlines()[1:]:
        if not text.startswith("expected start"):
            echo(f"  {text}")
    # The scheduler previews a job with its plans, which are computed by now.
    plans = () if isinstance(spec.plans, AutoPlans) else spec.plans
    labels = {(plan.worker_type, plan.gpus): plan.label for plan in plans}
    rows = [
        (
            f"  {place.worker_type}",
            str(place.gpus),
            *([labels.get((place.worker_type, place.gpus), "")] if labels else []),
            f"{'~' if place.rate_guessed else ''}{short_number(place.rate)}" if place.rate else "?",
            f"{place.gpus_free}/{place.gpus_fitting}",
            few(place.nodes),
        )
        for place in preview.places
    ]
    if rows:
        show_table((*COLUMNS[:2], *([Column("plan")] if labels else []), *COLUMNS[2:]), rows)
