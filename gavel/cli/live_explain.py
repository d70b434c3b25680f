"""`gavel explain` of a live scheduler."""

from __future__ import annotations

import click

from gavel.cli.connecting import job_id, print_json, scheduler


def live_explain(job: str, as_json: bool, address: str | None, context: str | None) -> None:
    """The same answer as for a journal, for people and for programs."""
    with scheduler(address, context) as client:
        said = client.explain(job_id(client, job))
    if as_json:
        print_json(said.details)
    else:
        click.echo(said.rendered)
