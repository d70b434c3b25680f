"""`gavel explain`: why a job waited, ran where it ran, or how it ended, at any moment of a journal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import click
import msgspec
from msgspec.structs import replace

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import say
from gavel.cli.io.wording import count_of, printable, printable_lines, shortened
from gavel.cli.simulation.journals import Until, nothing_in, opened
from scheduler.core.state import SchedulerState
from scheduler.explain import Explanation, Way, render
from scheduler.explain import explain as reason_of
from scheduler.journal.recovery import recover_scheduler
from scheduler.model.errors import NotFound

NAME_CHARACTERS = 24
AFTER_ITS_END_S = 3600.0  # for so long it is believed that nothing has happened since
# `job 17`, `jobs 17, 18 and 34 others`: in the latter two ids, and a number that is none
ID = re.compile(r"[\w/]+")
JOBS = re.compile(r"(?P<jobs>\bjobs? )(?P<ids>[\w/]+(?:, [\w/]+)*(?: and [\w/]+(?! others?\b))?)(?![\w/])")


def explain(job: str, journal_in: str, at_s: float | None, as_json: bool) -> None:
    """The command's body."""
    state, at_s = state_at(journal_in, at_s)
    try:
        found = reason_of(state, job_named(state, job), at_s)
    except NotFound as error:
        raise Fault(f"{printable(journal_in)}: {printable(str(error))}") from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        names = {known.id: known.spec.name for known in state.jobs.values()}
        click.echo(printable_lines(render(with_names(found, names))))


def state_at(path: str, at_s: float | None) -> tuple[SchedulerState, float | None]:
    """The state that a journal adds up to, at a moment or (None) at its end; and the moment, if there is that."""
    with opened(path) as journal:
        then = Until(journal, math.inf if at_s is None else at_s)
        state = recover_scheduler(then).state
        if not then.has_beginning:
            raise Fault(f"--at: {at_s:g}: what was then is compacted away; a later moment can be asked for")
        if then.seen_to_its_end and not state.jobs:
            raise nothing_in(journal, path, "jobs")
        if then.seen_to_its_end and at_s is not None and at_s > state.now_s + AFTER_ITS_END_S:
            say(f"note: {printable(path)} ends at {state.now_s:,.0f} s, which is taken instead of {at_s:g} s")
            at_s = None
    return state, at_s


def job_named(state: SchedulerState, job: str) -> str:
    """A job by its id, or by its name where only one has it. An id goes before a name, which is said."""
    named = [known.id for known in state.jobs.values() if known.spec.name == job and known.id != job]
    some = ", ".join(named[:5]) + (", …" if len(named) > 5 else "")
    if job in state.jobs:
        if named:
            are = f"the job that is called '{job}' has" if len(named) == 1 else f"jobs called '{job}' have"
            say(f"note: '{job}' is taken as the scheduler's number; {are} the number {some}")
        return job
    if len(named) > 1:
        raise NotFound(f"{count_of(len(named), 'job')} are called '{job}'; say which by its number: {some}")
    return named[0] if named else job


def with_names(found: Explanation, names: Mapping[str, str]) -> Explanation:
    """The same, with `17 (resnet-50)` for `17` wherever a job has a name of its own."""

    def called(job: str) -> str:
        name = names.get(job, "")
        return job if name in ("", job) else f"{job} ({shortened(name, NAME_CHARACTERS)})"

    def said(text: str) -> str:
        return JOBS.sub(lambda jobs: jobs["jobs"] + ID.sub(lambda one: called(one[0]), jobs["ids"]), text)

    def way(one: Way) -> Way:
        held_by = tuple(replace(holder, job=called(holder.job)) for holder in one.held_by)
        return replace(
            one, with_job=called(one.with_job), reserved_for=called(one.reserved_for), held_by=held_by
        )

    return replace(
        found,
        job=called(found.job),
        text=said(found.text),
        evidence=tuple(map(way, found.evidence)),
        would_change=tuple(replace(change, text=said(change.text)) for change in found.would_change),
    )
