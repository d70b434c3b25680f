"""`gavel cancel`, `hold`, `release`, `requeue`: change several jobs, one after the other, each with its own outcome."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import complete_jobs
from gavel.cli.io.options import FILTERS, YES
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, confirm, print_json
from gavel.cli.io.wording import count_of
from gavel.cli.jobs.queue import job_filter
from gavel.client.views.job_text import few, ids

if TYPE_CHECKING:
    from gavel.client import Client

Action = Literal["cancel", "hold", "release", "requeue"]
PAST_TENSE = {"cancel": "cancelled", "hold": "held", "release": "released", "requeue": "requeued"}
# The states in which each action is possible; `--all` ignores jobs in other states.
POSSIBLE_STATES: dict[Action, Sequence[str]] = {
    "cancel": ("queued", "running", "preempted", "held"),
    "hold": ("queued", "running", "preempted"),
    "release": ("held",),
    "requeue": ("running",),
}


def _command(action: Action, help: str) -> click.Command:
    @click.command(action, help=help)
    @click.argument(
        "jobs",
        nargs=-1,
        metavar="[JOB…]",
        shell_complete=complete_jobs(POSSIBLE_STATES[action], to_change=True),
    )
    @click.option(
        "--all", "all_", is_flag=True, help="All jobs that match the filters; without --user, only your own."
    )
    @FILTERS
    @YES
    @LIVE
    def change(jobs: tuple[str, ...], all_: bool, yes: bool, session: Session, **filters: Any) -> None:
        if not all_ and any(filters.values()):
            raise Fault("filters such as --state need --all; jobs given by id need none")
        if bool(jobs) == all_:
            raise Fault(f"give ids of jobs, or --all with filters (see `gavel {action} --help`)")
        with session.client(changes=True) as client:
            job_ids = _matching_ids(client, action, yes, filters) if all_ else jobs
            sys.exit(_change(session, client, action, job_ids, from_all=all_))

    return change


cancel = _command("cancel", "Stop jobs for good. JOB may be an array.")
hold = _command("hold", "Keep jobs waiting until they are released; running jobs save and stop.")
release = _command("release", "Let held jobs run again.")
requeue = _command("requeue", "Stop running jobs and put them back into the queue.")


def _matching_ids(client: Client, action: Action, yes: bool, filters: dict[str, Any]) -> list[str]:
    """Return the ids of the jobs that match the filters, after the user's confirmation."""
    chosen_states = filters.pop("states") or POSSIBLE_STATES[action]
    states = [state for state in POSSIBLE_STATES[action] if state in chosen_states]
    if not states:
        raise Fault(f"--state: cannot {action} jobs that are {few(list(chosen_states))}")
    job_ids = [job.id for job in client.queue(job_filter(states=states, **filters), limit=None)]
    # Jobs are listed newest first. This order suits `cancel`: a job is cancelled after the jobs that depend on it.
    if action != "cancel":
        job_ids.reverse()
    if job_ids and not yes:
        confirm(action, count_of(len(job_ids), "job"), ids(job_ids))
    return job_ids


def _change(session: Session, client: Client, action: Action, job_ids: Sequence[str], from_all: bool) -> int:
    """Change the jobs, and return the exit code.

    `from_all`: these are the jobs that --all has found; skip a job whose state has changed since then.
    """
    from gavel.client import Refused

    def act(job: str) -> Sequence[str] | None:
        try:
            return getattr(client, action)(job)
        except Refused:
            if from_all and client.get(job).state not in POSSIBLE_STATES[action]:
                return None
            raise

    def in_words(job: str, changed: Sequence[str] | None) -> str:
        if changed is None:
            return ""
        return f"{PAST_TENSE[action]} {ids(changed)}" if changed else f"nothing to {action} in {job}"

    done, failed, code = session.do_each("job", job_ids, act, in_words)
    if session.as_json:
        print_json({"jobs": [job for changed in done for job in changed or ()], "failed": failed})
    elif not job_ids:
        say("no jobs match")
    return code
