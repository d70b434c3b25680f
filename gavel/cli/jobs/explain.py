"""`gavel explain`: why a job waits, or runs where it runs, from a live scheduler or a journal."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import complete_jobs
from gavel.cli.io.options import ADDRESS, Number
from gavel.cli.io.outputs import say
from gavel.cli.io.quiet_grpc import with_quiet_grpc
from gavel.cli.io.wording import count_of, printable_lines
from scheduler.model.bounds import Bound

MEMBERS_MAX = 10
# Times on the scheduler's clock; other fields in seconds are durations.
TIMES = ("at_s", "expected_start_s", "until_s", "kept_until_s")


@click.command()
@click.argument("job", shell_complete=complete_jobs())
@click.option(
    "--journal",
    "journal_in",
    type=click.Path(),
    metavar="FILE",
    help="A journal, such as `gavel simulate --journal` writes.  [default: ask the live scheduler]",
)
@click.option(
    "--at",
    "at_s",
    type=Number(Bound(0, math.inf)),
    metavar="SECONDS",
    help="A time on the journal's clock.  [default: its end]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@ADDRESS
def explain(
    job: str,
    journal_in: str | None,
    at_s: float | None,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """Why is my job waiting? Or why does it run where it runs?

    JOB is an id, or a name that only one job has. The answer has one dominant reason, the evidence for it, what would
    change it, and when the job is expected to start. For an array, each of the first ten members that have not ended
    gets such an answer; with --json they are a list.
    """
    if journal_in is not None:
        from gavel.cli.simulation import explain_journal

        explain_journal.explain(job, journal_in, at_s, as_json)
    elif at_s is not None:
        raise Fault("--at needs --journal: a live scheduler explains the present")
    else:
        _explain_live(job, as_json, address, context)


@with_quiet_grpc
def _explain_live(job: str, as_json: bool, address: str | None, context: str | None) -> None:
    from gavel.cli.io.session import Session, print_json

    with Session(address, context, as_json).client() as client:
        jobs = client.members(job)
        # If all members have ended, explain their ends.
        explained = ([job for job in jobs if not job.state.is_final] or jobs)[:MEMBERS_MAX]
        explanations = [client.explain(member.id) for member in explained]
    if as_json:
        details = [dated(explanation.details) for explanation in explanations]
        print_json(details[0] if jobs[0].array_index is None or jobs[0].id == job else details)
        return
    texts = [printable_lines(explanation.rendered.rstrip("\n")) for explanation in explanations]
    click.echo("\n\n".join(texts))
    if rest := len(jobs) - len(explained):
        click.echo(err=True)
        say(f"{count_of(rest, 'other member')}: `gavel show {job}` lists all")


def dated(value: Any) -> Any:
    """Write times as in all other JSON: `at_s`, a number, becomes `at`, a time."""
    if isinstance(value, list):
        return [dated(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        key.removesuffix("_s") if key in TIMES else key: datetime.fromtimestamp(entry, UTC)
        if key in TIMES and entry is not None
        else dated(entry)
        for key, entry in value.items()
    }
