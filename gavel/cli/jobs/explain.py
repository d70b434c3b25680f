"""`gavel explain` of a live scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from gavel.cli.io.session import job_id, members, print_json, scheduler
from gavel.cli.io.wording import count_of, printable_lines
from gavel.client import Job
from gavel.client.results import ACTIVE

MEMBERS_MAX = 10
TIMES = (
    "at_s",
    "expected_start_s",
    "until_s",
    "kept_until_s",
)  # on the scheduler's clock; the rest are lengths


def live_explain(job: str, as_json: bool, address: str | None, context: str | None) -> None:
    """The same answer as for a journal, for people and for programs; of an array one for each member."""
    with scheduler(address, context) as client:
        name = job_id(client, job)
        found = members(client, name)
        chosen = _worth_explaining(found)
        said = [client.explain(one.id) for one in chosen]
    if as_json:
        details = [dated(one.details) for one in said]
        print_json(details[0] if found[0].id == name else details)
        return
    click.echo("\n\n".join(printable_lines(one.rendered.rstrip("\n")) for one in said))
    if rest := len(found) - len(chosen):
        click.echo(f"\n{count_of(rest, 'other member')}: `gavel show {job}` lists all", err=True)


def _worth_explaining(found: Sequence[Job]) -> Sequence[Job]:
    """Of an array the members that have not ended; where all have, all: but never very many."""
    return ([job for job in found if job.state in ACTIVE] or found)[:MEMBERS_MAX]


def dated(value: Any) -> Any:
    """Moments as in all other JSON: `at_s`, a number, is `at`, a time."""
    if isinstance(value, list):
        return [dated(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key.removesuffix("_s") if key in TIMES else key: datetime.fromtimestamp(part, UTC)
        if key in TIMES and part is not None
        else dated(part)
        for key, part in value.items()
    }
