"""What a shell proposes where a policy is to be named."""

from __future__ import annotations

import click


def complete_policy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """For the shell."""
    from gavel.cli.policies.policy_list import completions

    return completions(incomplete)
