"""`gavel cancel`, `hold`, `release`, `requeue`: several jobs, one after the other, each with its own outcome."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import click

from gavel.cli.faults import Fault
from gavel.cli.io.job_text import few, ids
from gavel.cli.io.session import OK, exit_code, job_id, print_json, scheduler
from gavel.cli.io.wording import count_of, printable
from gavel.cli.jobs.queue import job_filter
from gavel.client import Client, GavelError, JobState
from gavel.client.errors import NotReachable, Refused

Action = Literal["cancel", "hold", "release", "requeue"]
DONE = {"cancel": "cancelled", "hold": "held", "release": "released", "requeue": "requeued"}
# What each can be done to: the others of `--all` are left alone.
FITTING = {
    "cancel": (JobState.QUEUED, JobState.RUNNING, JobState.PREEMPTED, JobState.HELD),
    "hold": (JobState.QUEUED, JobState.RUNNING, JobState.PREEMPTED),
    "release": (JobState.HELD,),
    "requeue": (JobState.RUNNING,),
}


def change(
    action: Action,
    jobs: tuple[str, ...],
    all_: bool,
    yes: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
    **filters: Any,
) -> None:
    """The command's body."""
    if not all_ and any(filters.values()):
        raise Fault("filters such as --state go with --all; jobs by their ids need none")
    if bool(jobs) == all_:
        raise Fault(f"say which: ids of jobs, or --all with filters (see `gavel {action} --help`)")
    with scheduler(address, context, changes=True) as client:
        chosen = _chosen(client, action, yes, filters) if all_ else list(dict.fromkeys(jobs))
        sys.exit(_do(client, action, chosen, as_json, any_state=all_))


def _chosen(client: Client, action: Action, yes: bool, filters: dict[str, Any]) -> list[str]:
    """Ids of what the filters fit, once somebody has agreed."""
    wanted = filters.pop("states") or FITTING[action]
    states = [state for state in FITTING[action] if state in wanted]
    if not states:
        raise Fault(f"--state: cannot {action} jobs that are {few(list(wanted))}")
    found = client.list(job_filter(client, states=states, **filters), brief=True)
    chosen = [job.id for job in found]
    if action != "cancel":  # of those that wait for each other, the last is cancelled first
        chosen.reverse()
    if chosen and not yes:
        if not sys.stdin.isatty():
            raise Fault(f"this would {action} {count_of(len(chosen), 'job')}: say --yes if you mean it")
        if not click.confirm(f"{action} {ids(chosen)}?", err=True):
            raise Fault("nothing was done")
    return chosen


def _do(client: Client, action: Action, chosen: Sequence[str], as_json: bool, any_state: bool) -> int:
    """The exit code: that of the first that failed. `any_state`: no matter, where a job has moved on meanwhile."""
    call = getattr(client, action)
    code, done, failed = OK, [], []
    for job in chosen:
        try:
            concerned = call(job if any_state else job_id(client, job))
        except NotReachable:
            raise  # the others would fail as well, each after its time
        except GavelError as error:
            if any_state and isinstance(error, Refused) and client.get(job).state not in FITTING[action]:
                continue
            code = code or exit_code(error)
            failed.append({"job": job, "reason": error.reason, "message": error.message})
            if not as_json:
                click.echo(f"gavel {action}: {printable(error.message)}", err=True)
            continue
        done += concerned
        if not as_json:
            click.echo(
                f"{DONE[action]} {ids(concerned)}"
                if concerned
                else f"nothing to {action} in {printable(job)}"
            )
    if as_json:
        print_json({"jobs": done, "failed": failed})
    elif not chosen:
        click.echo("no jobs fit", err=True)
    return code
