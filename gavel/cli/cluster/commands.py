"""Commands about the cluster and about who may do what: arguments and options, and nothing yet of how it is done."""

from __future__ import annotations

from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.options import JSON, LIVE, YES, options
from gavel.cli.policies.list import complete_policy

NODES = click.argument("names", nargs=-1, required=True, metavar="NODE…")


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE…]")
@LIVE
def nodes(**given: Any) -> None:
    """List nodes; of those that are named, each GPU too."""
    from gavel.cli.cluster.nodes import nodes

    nodes(**given)


@click.command()
@NODES
@LIVE
def drain(**given: Any) -> None:
    """Let nodes finish what they have, and give them nothing new."""
    from gavel.cli.cluster.nodes import change

    change("drain", yes=True, **given)


@click.command()
@NODES
@LIVE
def resume(**given: Any) -> None:
    """Give drained nodes jobs again."""
    from gavel.cli.cluster.nodes import change

    change("resume", yes=True, **given)


@click.command()
@NODES
@YES
@LIVE
def remove(**given: Any) -> None:
    """Take nodes out of the cluster for good, once they are drained and empty, or lost."""
    from gavel.cli.cluster.nodes import change

    change("remove", **given)


@click.command()
@options(
    click.option(
        "--by",
        type=click.Choice(["user", "tenant", "job_type"]),
        default="user",
        show_default=True,
        help="One row for each of these.",
    ),
    click.option("-u", "--user", default="", metavar="USER", help="Only this one's."),
    click.option(
        "--since", default="30d", show_default=True, metavar="WHEN", help="From then on: 7d, or a time."
    ),
    click.option("--until", metavar="WHEN", help="Until then.  [default: now]"),
    LIVE,
)
def usage(**given: Any) -> None:
    """Show GPU time and cost."""
    from gavel.cli.cluster.usage import usage

    usage(**given)


@click.group(invoke_without_command=True)
@LIVE
@click.pass_context
def policy(ctx: click.Context, /, **given: Any) -> None:
    """Show or set the policy that divides the cluster. `gavel policies` explains them all."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(policy_get, **given)
    elif any(given.values()):
        raise Fault(f"options stand behind {ctx.invoked_subcommand}, not before it")


@policy.command("get")
@LIVE
def policy_get(**given: Any) -> None:
    """Show the policy, and how the last allocation came out."""
    from gavel.cli.cluster.policy import get

    get(**given)


@policy.command("set")
@click.argument("spec", shell_complete=complete_policy)
@LIVE
def policy_set(**given: Any) -> None:
    """Divide the cluster by SPEC from the next allocation on: 'las', 'min_cost(premium=0.2)'."""
    from gavel.cli.cluster.policy import set_

    set_(**given)


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 if there is any warning: for monitoring.")
@LIVE
def status(**given: Any) -> None:
    """Show how the scheduler is, and who you are to it."""
    from gavel.cli.cluster.status import status

    status(**given)


@click.command()
@options(
    click.option(
        "--every",
        "every_s",
        type=click.FloatRange(0.5, 3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="How often to look.",
    ),
    click.option("--once", is_flag=True, help="Print one picture and end; so does --json."),
    LIVE,
)
def top(**given: Any) -> None:
    """Watch nodes, running jobs and the queue; q ends it."""
    from gavel.cli.cluster.top import top

    top(**given)


@click.group()
def token() -> None:
    """Make, list and revoke tokens, and those with which nodes join."""


@token.command("create")
@options(
    click.option("-u", "--user", default="", metavar="USER", help="For whom.  [default: you]"),
    click.option(
        "--role",
        type=click.Choice(["viewer", "user", "operator", "admin", "agent"]),
        default="user",
        show_default=True,
        help="What it allows.",
    ),
    click.option(
        "--valid", metavar="DURATION", help="For how long: 30d.  [default: what the scheduler says]"
    ),
    click.option("--note", default="", metavar="TEXT", help="What it is for."),
    LIVE,
)
def token_create(**given: Any) -> None:
    """Make a token. Its secret is shown once."""
    from gavel.cli.cluster.token import create

    create(**given)


@token.command("list")
@click.option("-u", "--user", default="", metavar="USER", help="Only this one's.")
@LIVE
def token_list(**given: Any) -> None:
    """List tokens, without their secrets."""
    from gavel.cli.cluster.token import list_

    list_(**given)


@token.command("revoke")
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="What this node has joined with; may be given again.",
)
@LIVE
def token_revoke(**given: Any) -> None:
    """Make tokens good for nothing, or what nodes have joined with.

    A node that is revoked is cut off at once, and its jobs start elsewhere when their leases have ended; `gavel drain`
    before it has them save and leave. It may join again, with another token.
    """
    from gavel.cli.cluster.token import revoke

    revoke(**given)


@token.command("revoked")
@LIVE
def token_revoked(**given: Any) -> None:
    """List the nodes that were revoked with `gavel token revoke --node`."""
    from gavel.cli.cluster.token import revoked

    revoked(**given)


@token.command("unrevoke")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@LIVE
def token_unrevoke(**given: Any) -> None:
    """Take the revocation of nodes back, if it was a mistake.

    Every certificate that the node has ever got counts again, also one that was lost. Where a key was lost, let the
    node join again with another token instead: only its new certificate counts then.
    """
    from gavel.cli.cluster.token import unrevoke

    unrevoke(**given)


@token.command("join")
@click.option("--node", default="", metavar="NODE", help="Only this one may use it.")
@click.option("--valid", metavar="DURATION", help="For how long.  [default: what the scheduler says]")
@LIVE
def token_join(**given: Any) -> None:
    """Make a one-time token with which a node joins."""
    from gavel.cli.cluster.token import join

    join(**given)


@click.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--ca", type=click.Path(), metavar="FILE", help="The scheduler's CA certificate.")
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input instead of asking.")
@JSON
def login(**given: Any) -> None:
    """Store a cluster under NAME, with your token for it, and use it from now on."""
    from gavel.cli.cluster.login import login

    login(**given)


@click.command()
@click.argument("name", required=False)
@click.option("--remove", is_flag=True, help="Forget it, and its token.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def context(**given: Any) -> None:
    """List the stored clusters, or use NAME from now on."""
    from gavel.cli.cluster.login import context

    context(**given)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for completion in a SHELL: add `source <(gavel completion bash)` to ~/.bashrc.

    zsh: the same in ~/.zshrc. fish: `gavel completion fish > ~/.config/fish/completions/gavel.fish`.
    """
    from gavel.cli.cluster.completion import completion

    completion(shell)
