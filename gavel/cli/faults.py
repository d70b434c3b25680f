"""Faults end a command with one line on standard error and an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

# The exit code of any command that Ctrl-C ends.
INTERRUPTED = 130
# The key in the `meta` of a context of the words of the command line, from the command on.
WORDS = "gavel.words"


class Fault(click.ClickException):
    """An error in the user's input: one line on standard error, and an exit code.

    Characters in the message that do not print, such as a new line in a file's name, are shown escaped.
    """

    def __init__(
        self, message: str, code: int = 2, *, more: Sequence[str] = (), context: click.Context | None = None
    ) -> None:
        """`more` are further lines to print. `context` is the command's context, by default the current one."""
        super().__init__(message)
        context = context or click.get_current_context(silent=True)
        self.command = context.command_path if context else "gavel"
        self.exit_code = code  # type: ignore[misc]
        self.more = more

    def show(self, file: Any = None) -> None:
        """Print the fault: `gavel allocate: cluster.yaml: jobs[3].gpus: must be …`."""
        for line in (f"{self.command}: {self.message}", *self.more):
            click.echo(line if line.isprintable() else _escaped(line), err=True)


def _escaped(line: str) -> str:
    # Imported here, because `protos` may be a foreign package; a fault then reports that.
    from protos.files.errors import printable

    return printable(line)


@contextmanager
def refusing(*kinds: type[Exception], subject: str = "") -> Iterator[None]:
    """Turn errors of these kinds into faults. `subject` names the option or file that the message is about."""
    try:
        yield
    except kinds as error:
        words = reason(error) if isinstance(error, OSError) else str(error)
        raise Fault(f"{subject}: {words}" if subject else words) from None


def reason(error: OSError) -> str:
    """Return the reason of a system error, formatted for a message: `permission denied`."""
    return (error.strerror or str(error)).lower()
