"""Faults end a command with one line on standard error and an exit code."""

from __future__ import annotations

from typing import Any

import click

# The exit code of any command that Ctrl-C ends.
INTERRUPTED = 130


class Fault(click.ClickException):
    """Something is wrong with what the user gave: one line on stderr, exit code 2."""

    exit_code = 2

    def __init__(self, message: str, context: click.Context | None = None) -> None:
        super().__init__(message)
        context = context or click.get_current_context(silent=True)
        self.command = context.command_path if context else "gavel"

    def show(self, file: Any = None) -> None:
        """Print the fault: `gavel allocate: cluster.yaml: jobs[3].gpus: must be …`."""
        click.echo(f"{self.command}: {self.message}", err=True)


class Interrupted(Fault):
    """Ctrl-C, before there was anything worth keeping."""

    exit_code = INTERRUPTED
