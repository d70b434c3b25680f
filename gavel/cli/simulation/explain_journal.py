"""`gavel explain --journal`: why a job waited, ran or ended, at any moment of a journal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import cast

import click
import msgspec
from msgspec.structs import replace

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.outputs import say
from gavel.cli.io.wording import count_of, printable_lines, shortened
from gavel.cli.simulation.journals import JournalUntil, empty_journal_fault, open_journal
from scheduler.core.state import SchedulerState
from scheduler.explain import Explanation, Way, render
from scheduler.explain import explain as reason_of
from scheduler.journal.record import Journal
from scheduler.journal.recovery import recover_scheduler
from scheduler.model.errors import NotFound

NAME_CHARACTERS = 24
# A time further after the last record than this is replaced by the end of the journal, with a note.
NOTE_AFTER_END_S = 3600.0
# `job 17`, `jobs 17, 18 and 34 others`: the latter has two ids and a number that is not an id.
ID = re.compile(r"[\w/]+")
JOBS = re.compile(r"(?P<jobs>\bjobs? )(?P<ids>[\w/]+(?:, [\w/]+)*(?: and [\w/]+(?! others?\b))?)(?![\w/])")


def explain(job: str, journal_in: str, at_s: float | None, as_json: bool) -> None:
    """Print why a job waited, ran or ended, at this time; None: at the end of the journal."""
    state, at_s = state_at(journal_in, at_s)
    with refusing(NotFound, subject=journal_in):
        explanation = reason_of(state, id_of(state, job), at_s)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode())
    else:
        names = {other.id: other.spec.name for other in state.jobs.values()}
        click.echo(printable_lines(render(with_names(explanation, names))))


def state_at(path: str, at_s: float | None) -> tuple[SchedulerState, float | None]:
    """Return a journal's state at a time, and that time; None means the journal's end."""
    with open_journal(path) as journal:
        view = JournalUntil(journal, math.inf if at_s is None else at_s)
        state = recover_scheduler(cast(Journal, view)).state
        if not view.has_beginning:
            raise Fault(f"--at: {at_s:g}: its records are compacted away; ask for a later time")
        if view.read_to_its_end and not state.jobs:
            raise empty_journal_fault(journal, path, "jobs")
        if view.read_to_its_end and at_s is not None and at_s > state.now_s + NOTE_AFTER_END_S:
            say(f"note: {path} ends at {state.now_s:,.0f} s, which is used instead of {at_s:g} s")
            at_s = None
    return state, at_s


def id_of(state: SchedulerState, job: str) -> str:
    """Return the id of a job given by id or by name. An id takes precedence over a name, with a note if both fit."""
    same_name = [other.id for other in state.jobs.values() if other.spec.name == job and other.id != job]
    first_ids = ", ".join(same_name[:5]) + (", …" if len(same_name) > 5 else "")
    if job in state.jobs:
        if same_name:
            others = (
                f"the job that is called '{job}' has" if len(same_name) == 1 else f"jobs called '{job}' have"
            )
            say(f"note: '{job}' is taken as the scheduler's number; {others} the number {first_ids}")
        return job
    if len(same_name) > 1:
        raise NotFound(
            f"{count_of(len(same_name), 'job')} are called '{job}'; give the number of one: {first_ids}"
        )
    return same_name[0] if same_name else job


def with_names(explanation: Explanation, names: Mapping[str, str]) -> Explanation:
    """Return the explanation with the names of jobs after their ids: `17 (resnet-50)`."""

    def id_and_name(job: str) -> str:
        name = names.get(job, "")
        return job if name in ("", job) else f"{job} ({shortened(name, NAME_CHARACTERS)})"

    def with_names_in(text: str) -> str:
        return JOBS.sub(
            lambda jobs: jobs["jobs"] + ID.sub(lambda job: id_and_name(job[0]), jobs["ids"]), text
        )

    def way(plain: Way) -> Way:
        return replace(
            plain,
            with_job=id_and_name(plain.with_job),
            reserved_for=id_and_name(plain.reserved_for),
            held_by=tuple(replace(holder, job=id_and_name(holder.job)) for holder in plain.held_by),
        )

    return replace(
        explanation,
        job=id_and_name(explanation.job),
        text=with_names_in(explanation.text),
        evidence=tuple(map(way, explanation.evidence)),
        would_change=tuple(
            replace(change, text=with_names_in(change.text)) for change in explanation.would_change
        ),
    )
