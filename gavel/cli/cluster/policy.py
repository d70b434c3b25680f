"""`gavel policy`: show or set the policy that divides the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import complete_policies
from gavel.cli.io.outputs import echo
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.wording import count_of
from gavel.cli.policies.list import complete_policy
from gavel.client.views.units import ago

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@click.group(invoke_without_command=True)
@LIVE
@click.pass_context
def policy(ctx: click.Context, /, session: Session) -> None:
    """Show or set the policy that divides the cluster. `gavel policies` explains them all."""
    if ctx.invoked_subcommand is None:
        _show(session)
    elif any(session):
        raise Fault(f"options go after {ctx.invoked_subcommand}, not before it")


@policy.command()
@LIVE
def get(session: Session) -> None:
    """Show the policy and the result of the last allocation."""
    _show(session)


def _show(session: Session) -> None:
    with session.client() as client:
        policy, allocation = client.policy(), client.allocation()
    if session.as_json:
        print_json({"policy": policy.policy, "available": policy.available, "allocation": allocation})
        return
    echo(policy.policy)
    if not allocation.number:
        echo("  no allocation has been made yet")
        return
    last = f"  last allocation: number {allocation.number}, by {allocation.policy}"
    shares = count_of(len(allocation.shares), "share")
    limit = "" if allocation.optimal else ", the best found in the time given"
    echo(f"{last}, {ago(allocation.adopted, datetime.now(UTC))}, {shares}{limit}")
    if allocation.failed:
        echo(f"  first come, first served, because the solver failed: {allocation.failed}")
    for note in allocation.notes:
        echo(f"  {note}")


def _complete_spec(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> Sequence[str | CompletionItem[str]]:
    """Complete a spec from the policies of this installation or, without the extra `server`, of the scheduler."""
    here = complete_policy(context, parameter, incomplete)
    return here or complete_policies(context, parameter, incomplete)


@policy.command("set")
@click.argument("spec", shell_complete=_complete_spec)
@LIVE
def set_(spec: str, session: Session) -> None:
    """Divide the cluster by SPEC from the next allocation on: 'las', 'min_cost(premium=0.2)'."""
    with session.client(changes=True, awaited=f"the scheduler tries {spec} on a small problem") as client:
        policy = client.set_policy(spec)
    if session.as_json:
        print_json(policy)
    else:
        echo(f"{policy.policy}, from the next allocation on")
