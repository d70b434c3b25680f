"""`gavel completion`: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gavel.cli.faults import Fault


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for completion in a SHELL: add `source <(gavel completion bash)` to ~/.bashrc.

    zsh: the same in ~/.zshrc. fish: `gavel completion fish > ~/.config/fish/completions/gavel.fish`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise Fault(f"there is no completion for {shell}")
    click.echo(kind(context.find_root().command, {}, "gavel", "_GAVEL_COMPLETE").source())
