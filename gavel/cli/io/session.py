"""A command's session with a scheduler: one client, and one line and an exit code for every failure of a call.

WARNING: docs/cli.md promises the exit codes. They keep their meaning.

Functions that need `gavel.client` import it themselves. So importing this file is cheap, and commands do it at the top.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from gavel.cli.faults import Fault
from gavel.cli.io.options import ADDRESS, JSON, Command, options
from gavel.cli.io.outputs import echo, print_data, say
from gavel.cli.io.quiet_grpc import with_quiet_grpc
from gavel.cli.io.tables import Column, show_table
from gavel.client.views.units import span

if TYPE_CHECKING:
    from gavel.cli.io.tables import Row
    from gavel.client import Client, GavelError

R = TypeVar("R")

OK, FAILED, WRONG, MISSING, UNREACHABLE, FORBIDDEN, REFUSED = range(7)
# Exit codes by class of error, or its nearest base class.
_CODES = {
    "GavelError": UNREACHABLE,
    "NotReachable": UNREACHABLE,
    "ServerError": UNREACHABLE,
    "NotAuthenticated": FORBIDDEN,
    "NotAllowed": FORBIDDEN,
    "NotFound": MISSING,
    "Invalid": WRONG,
    "Conflict": REFUSED,
    "Refused": REFUSED,
    "TooMany": REFUSED,
}
# How long a call is retried; longer if the command changes something.
RETRY_S, CHANGE_RETRY_S = 3.0, 15.0
# Shorter waits are not reported.
WAIT_REPORTED_S = 1.0


def exit_code(error: GavelError) -> int:
    """Return the exit code for a call that failed with this error."""
    return next(_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES)


@contextmanager
def errors_as_faults(client: Client | None = None) -> Iterator[None]:
    """Turn every error of a call in this block into a `Fault`."""
    from gavel.client import GavelError, InvalidJob

    try:
        yield
    except GavelError as error:
        others = error.more if isinstance(error, InvalidJob) else ()
        message = error.message + _remedy(error, client)
        raise Fault(message, exit_code(error), more=[other.message for other in others]) from None


def _remedy(error: GavelError, client: Client | None) -> str:
    from gavel.client import NotAuthenticated, NotReachable
    from gavel.client.settings import ADDRESS

    if isinstance(error, NotReachable) and error.reason == "unreachable" and client is not None:
        connection = client.connection
        if connection.address == ADDRESS and connection.origin == "the default":
            return (
                "; `gavel up` starts one here for trying things, GAVEL_ADDRESS or `gavel login` names another"
            )
        return f" (the address is from {connection.origin}); is it right, and `gavel serve` running there?"
    if isinstance(error, NotAuthenticated):
        return "; GAVEL_TOKEN or `gavel login` gives a token, `gavel token create` makes one"
    return ""


class Session(NamedTuple):
    """The options of a command that calls a scheduler: its address, and whether to print JSON."""

    address: str | None
    context: str | None
    as_json: bool

    @contextmanager
    def client(self, *, changes: bool = False, awaited: str = "") -> Iterator[Client]:
        """Open the command's client. Commands that change something pass `changes`: calls are retried for longer.

        `awaited`: what the scheduler does before it answers, if that takes long.
        """
        from gavel.client import Client

        with errors_as_faults():
            retry_s = CHANGE_RETRY_S if changes else RETRY_S
            client = Client(
                self.address, context=self.context, retry_s=retry_s, on_trouble=_Waiting(awaited).report
            )
            # If no address was given, there is probably no scheduler: report that at once.
            if client.connection.origin == "the default":
                client.retry_s = 0.0
        with client, errors_as_faults(client):
            yield client

    def do_each(
        self,
        kind: str,
        names: Iterable[str],
        act: Callable[[str], R],
        in_words: Callable[[str, R], str],
    ) -> tuple[list[R], list[dict[str, str]], int]:
        """Apply `act` to each name; report failures and continue with the others.

        Returns the results, the failures as `--json` prints them (with the name under `kind`), and the exit code of the
        first failure.
        """
        from gavel.client import GavelError, NotReachable

        code, done, failed = OK, [], []
        for name in dict.fromkeys(names):
            try:
                result = act(name)
            except NotReachable:
                # Calls for the other names would fail as well, each after its timeout.
                raise
            except GavelError as error:
                code = code or exit_code(error)
                failed.append({kind: name, "reason": error.reason, "message": error.message})
                if not self.as_json:
                    say(f"{click.get_current_context().command_path}: {error.message}")
                continue
            done.append(result)
            if not self.as_json and (words := in_words(name, result)):
                echo(words)
        return done, failed, code

    def show(
        self, listed: Sequence[Any], columns: Sequence[Column], rows: Sequence[Row], if_empty: str
    ) -> None:
        """Print a list as JSON or as a table; for an empty list, print the message `if_empty` in place of a table."""
        if self.as_json:
            print_json(listed)
        elif listed:
            show_table(columns, rows)
        else:
            say(if_empty)


def _with_session(command: Command) -> Command:
    """Pass the command a `Session` in place of its three options."""

    @functools.wraps(command)
    def run(
        *arguments: Any, address: str | None, context: str | None, as_json: bool = False, **values: Any
    ) -> Any:
        return command(*arguments, session=Session(address, context, as_json), **values)

    return run


# Decorates a command that calls a scheduler: adds the options of `Session`, and passes a `Session` to the command.
LIVE = options(JSON, ADDRESS, with_quiet_grpc, _with_session)
# The same for a command whose output is that of a job's program.
LIVE_AS_TEXT = options(ADDRESS, with_quiet_grpc, _with_session)


class _Waiting:
    """Reports on standard error that a command waits for the scheduler, and that calls work again. Thread-safe.

    A call that only takes long is no fault, so its end is not reported.
    """

    def __init__(self, awaited: str) -> None:
        """`awaited`: what the scheduler does before it answers; empty: nothing that takes long."""
        self._awaited, self._lock = awaited, threading.Lock()
        self._reported = False

    def report(self, error: GavelError | None, left_s: float) -> None:
        """Handle a report of `Client`: an error and the time left to retry, or None when a call works again."""
        with self._lock:
            if error is None:
                if self._reported:
                    say("it works again")
                self._reported = False
            elif not self._reported and left_s >= WAIT_REPORTED_S:
                for_long = "until it answers" if left_s == math.inf else f"for up to {span(left_s)}"
                from gavel.client.errors import SILENT

                if error.reason == SILENT:
                    say(f"{self._awaited or error.message}; waiting {for_long} (Ctrl-C stops)")
                    return
                say(f"{error.message}; retrying {for_long} (Ctrl-C stops)")
                self._reported = True


def confirm(action: str, counted: str, named: str) -> None:
    """Ask the user for confirmation, as in `cancel jobs 1 and 2?`; refuse if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise Fault(f"this would {action} {counted}; give --yes to confirm")
    if not click.confirm(f"{action} {named}?", err=True):
        raise Fault("nothing was done")


def print_json(value: Any) -> None:
    """Print a result, indented."""
    from gavel.client.reading import plain

    print_data(plain(value))


def print_line(value: Any) -> None:
    """Print a result of a stream on a line of its own, at once."""
    import json

    from gavel.client.reading import plain

    click.echo(json.dumps(plain(value), allow_nan=False))
