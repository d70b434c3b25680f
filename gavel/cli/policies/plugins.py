"""`--policy-file`: policies of the user's own, for the commands that solve problems on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gavel.cli.faults import Fault

POLICY_FILES = click.option(
    "--policy-file",
    "policy_files",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="A Python file with policies of your own; may be repeated.",
)


def load_policies(files: Sequence[str] = (), option: str = "--policy-file") -> None:
    """Register the policies of installed packages and of these files. Refuse a file that cannot be loaded."""
    from scheduler.plugins import load

    for fault in load(files).values():
        raise Fault(f"{option}: {fault}")
