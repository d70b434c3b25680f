"""From a command to a scheduler: one client, and every way a call can fail as one line and an exit code.

WARNING: exit codes are promised in docs/cli.md. They keep their meaning.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.units import span
from gavel.cli.io.wording import printable
from gavel.client import Client, Job
from gavel.client import errors as e
from gavel.client.reading import plain
from gavel.client.settings import ADDRESS

TOLD_S = 1.0  # what is waited for no longer is not worth a word
_SEVERAL = re.compile(r"[\d_]+[-,.:\[][\d_,\]\[:.-]*")  # 3-5, 3,4, 6_[0-2]
OK, FAILED, WRONG, MISSING, UNREACHABLE, FORBIDDEN, REFUSED = range(7)
RETRY_S, CHANGE_RETRY_S = 3.0, 15.0

_CODES: tuple[tuple[type[e.GavelError], int], ...] = (
    (e.NotReachable, UNREACHABLE),
    (e.ServerError, UNREACHABLE),
    (e.NotAuthenticated, FORBIDDEN),
    (e.NotAllowed, FORBIDDEN),
    (e.NotFound, MISSING),
    (e.Invalid, WRONG),
    (e.Conflict, REFUSED),
    (e.Refused, REFUSED),
    (e.TooMany, REFUSED),
)


def exit_code(error: e.GavelError) -> int:
    """What a command ends with when a call fails so."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNREACHABLE)


def failure(code: int, message: str) -> Fault:
    """One line on standard error, and this exit code."""
    kind = type("Failure", (Fault,), {"exit_code": code})
    said: Fault = kind(message)
    return said


@contextmanager
def one_line(client: Client | None = None) -> Iterator[None]:
    """Whatever goes wrong with a call, as a `Fault`."""
    try:
        yield
    except e.GavelError as error:
        more = [printable(one.message) for one in error.more] if isinstance(error, e.InvalidJob) else []
        text = "\n".join([printable(error.message) + _remedy(error, client), *more])
        raise failure(exit_code(error), text) from None


def _remedy(error: e.GavelError, client: Client | None) -> str:
    if isinstance(error, e.NotReachable) and error.reason == "unreachable" and client is not None:
        said = client.connection
        if said.address == ADDRESS and said.origin == "the default":
            return (
                "; `gavel up` starts one here for trying things, GAVEL_ADDRESS or `gavel login` names another"
            )
        return f" (the address is from {said.origin}); is it right, and `gavel serve` running there?"
    if isinstance(error, e.NotAuthenticated):
        return "; GAVEL_TOKEN or `gavel login` gives a token, `gavel token create` makes one"
    return ""


@contextmanager
def scheduler(address: str | None, context: str | None, *, changes: bool = False) -> Iterator[Client]:
    """The client of a command. `changes`: it is worth some more patience."""
    with one_line():
        retry_s = CHANGE_RETRY_S if changes else RETRY_S
        client = Client(address, context=context, retry_s=retry_s, on_trouble=Waited().hear)
        if client.connection.origin == "the default":  # then most likely there is none: say so at once
            client.retry_s = 0.0
    with client, one_line(client):
        yield client


class Waited:
    """Says on standard error what is waited for, once, and that it is over; whichever thread has the trouble."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = False

    def hear(self, error: e.GavelError | None, left_s: float) -> None:
        """As `Client` tells it."""
        with self._lock:
            if error is None:
                if self._said:
                    click.echo("it works again", err=True)
                self._said = False
            elif not self._said and left_s >= TOLD_S:
                for_long = "until it answers" if left_s == math.inf else f"for up to {span(left_s)}"
                click.echo(f"{printable(error.message)}; trying {for_long} (Ctrl-C ends this)", err=True)
                self._said = True


def print_json(value: Any) -> None:
    """A result, indented."""
    click.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def print_line(value: Any) -> None:
    """A result on a line of its own, for streams; seen at once."""
    click.echo(json.dumps(plain(value), allow_nan=False))


def is_id(said: str) -> bool:
    """`17`, `17_3`: what a job or array is called by the scheduler, not a name."""
    return said.isascii() and said.replace("_", "", 1).isdigit()


def job_id(client: Client, said: str) -> str:
    """A job or array by its id, or by its name where only one unfinished or else one job has it."""
    from gavel.client import JobFilter
    from gavel.client.results import ACTIVE

    if is_id(said):
        return said
    if not said.strip():  # a variable of a script that is not set: no name, though there are jobs without one
        raise e.Invalid("the id of a job is empty")
    escaped = said.replace("*", "?")  # a name, not a pattern; what else fits is sorted out below
    # The last finds jobs that the scheduler has forgotten, too.
    for which in (JobFilter(states=ACTIVE), JobFilter(), JobFilter(ended=True)):
        page = client.page(replace(which, name=escaped), size=100, brief=True)
        ids = sorted({_whole(job) for job in page.jobs if job.spec.name == said}, key=int)
        if len(ids) > 1:
            some = ", ".join(ids[:5])
            raise e.NotFound(f"{len(ids)} jobs are called '{said}'; say which by its id: {some}")
        if ids:
            return ids[0]
    several = "; several are named one by one: 3 4 5, or {3..5}" if _SEVERAL.fullmatch(said) else ""
    raise e.NotFound(f"there is no job '{said}'{several}")


def members(client: Client, job: str) -> Sequence[Job]:
    """The job of this id, or each member of the array of this id, by index."""
    from gavel.client import JobFilter

    try:
        return [client.get(job)]
    except e.NotFound:
        found = sorted(client.list(JobFilter(jobs=[job])), key=lambda one: one.array_index or 0)
        if not found:
            raise
        return found


def _whole(job: Any) -> str:
    """The array of a member, the job itself otherwise."""
    return str(job.id.partition("_")[0])
