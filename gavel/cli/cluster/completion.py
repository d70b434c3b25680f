"""`gavel completion`: the script that a shell reads."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gavel.cli import Fault


def completion(shell: str) -> None:
    """The command's body."""
    from gavel.cli import main

    kind = get_completion_class(shell)
    if kind is None:
        raise Fault(f"there is no completion for {shell}")
    click.echo(kind(main, {}, "gavel", "_GAVEL_COMPLETE").source())
