"""`gavel explain`: why a job waited, ran where it ran, or how it ended, at any moment of a journal."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from gavel.cli import Fault
from gavel.cli.replay import say_damage
from gavel.cli.wording import printable
from scheduler.core.apply import apply
from scheduler.core.explain import explain as reason_of
from scheduler.core.explain import render
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import JournalError
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.model.errors import NotFound


def explain(job: str, journal_in: str, at_s: float | None, as_json: bool) -> None:
    """The command's body."""
    state = state_at(journal_in, at_s)
    try:
        found = reason_of(state, job_named(state, job), at_s)
    except NotFound as error:
        raise Fault(f"{printable(journal_in)}: {printable(str(error))}") from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(render(found))


def state_at(path: str, at_s: float | None) -> SchedulerState:
    """The state that a journal adds up to, at a moment or at its end."""
    name = printable(path)
    if not Path(path).is_file():
        raise Fault(f"{name}: there is no such journal")
    try:
        with SqliteJournal(path, read_only=True) as journal:
            say_damage(journal, name)
            if at_s is None:
                return recover_scheduler(journal).state
            state = SchedulerState()
            for now_s, fact in journal.read():
                if now_s > at_s:
                    break
                apply(state, now_s, fact)
            return state
    except JournalError as error:
        raise Fault(f"{name}: {printable(str(error))}") from None


def job_named(state: SchedulerState, job: str) -> str:
    """A job by its id, or by its name where only one has it."""
    if job in state.jobs:
        return job
    named = [known.id for known in state.jobs.values() if known.spec.name == job]
    if len(named) > 1:
        some = ", ".join(named[:5])
        raise NotFound(f"{len(named)} jobs are called '{job}'; say which by its id: {some}")
    return named[0] if named else job
