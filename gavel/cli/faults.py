"""Faults end a command with one line on standard error and an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

# The exit code of any command that Ctrl-C ends.
INTERRUPTED = 130


class Fault(click.ClickException):
    """Something is wrong with what the user gave: one line on standard error, and an exit code.

    What does not print in the message, such as a new line in the name of a file, is shown escaped.
    """

    def __init__(
        self, message: str, code: int = 2, *, more: Sequence[str] = (), context: click.Context | None = None
    ) -> None:
        """`more`: further lines to print. `context`: of the command, where it is not the current one."""
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
    # Not at the head: where another package is called `protos`, a fault says so.
    from protos.files.errors import printable

    return printable(line)


@contextmanager
def refusing(*kinds: type[Exception], subject: str = "") -> Iterator[None]:
    """Turn errors of these kinds into faults. `subject`: what their message is about, such as an option or a file."""
    try:
        yield
    except kinds as error:
        words = reason(error) if isinstance(error, OSError) else str(error)
        raise Fault(f"{subject}: {words}" if subject else words) from None


def reason(error: OSError) -> str:
    """Return why the system refused something, as it stands in a message: `permission denied`."""
    return (error.strerror or str(error)).lower()
