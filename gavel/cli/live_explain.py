"""`gavel explain` of a live scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gavel.cli.connecting import job_id, members, print_json, scheduler
from gavel.cli.wording import count_of
from gavel.client import Job
from gavel.client.results import ACTIVE

MEMBERS_MAX = 10


def live_explain(job: str, as_json: bool, address: str | None, context: str | None) -> None:
    """The same answer as for a journal, for people and for programs; of an array one for each member."""
    with scheduler(address, context) as client:
        name = job_id(client, job)
        found = members(client, name)
        chosen = _worth_explaining(found)
        said = [client.explain(one.id) for one in chosen]
    if as_json:
        print_json(said[0].details if found[0].id == name else [one.details for one in said])
        return
    click.echo("\n\n".join(one.rendered.rstrip("\n") for one in said))
    if rest := len(found) - len(chosen):
        click.echo(f"\n{count_of(rest, 'other member')}: `gavel show {job}` lists all", err=True)


def _worth_explaining(found: Sequence[Job]) -> Sequence[Job]:
    """Of an array the members that have not ended; where all have, all: but never very many."""
    return ([job for job in found if job.state in ACTIVE] or found)[:MEMBERS_MAX]
