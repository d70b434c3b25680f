"""`gavel completion`: the script that a shell reads."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gavel.cli.faults import Fault


def completion(shell: str) -> None:
    """Print the script of a shell."""
    main = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise Fault(f"there is no completion for {shell}")
    click.echo(kind(main, {}, "gavel", "_GAVEL_COMPLETE").source())
