"""`gavel token`: create, list and revoke tokens and join tokens."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault
from gavel.cli.io.durations import length_s
from gavel.cli.io.outputs import echo, say
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.tables import Column
from gavel.client.views.units import ago, span

if TYPE_CHECKING:
    from gavel.client.results import RevokedNode, Token

COLUMNS = (
    Column("id", width_max=20),
    Column("user", width_max=16),
    Column("role"),
    Column("expires"),
    Column("last used"),
    Column("note"),
)
REVOKED_COLUMNS = (Column("node", width_max=40), Column("revoked"), Column("since then"))


@click.group()
def token() -> None:
    """Create, list and revoke tokens and the join tokens of nodes."""


@token.command()
@click.option("-u", "--user", default="", metavar="USER", help="The token's user.  [default: you]")
@click.option(
    "--role",
    type=click.Choice(["viewer", "user", "operator", "admin", "agent"]),
    default="user",
    show_default=True,
    help="What the token allows.",
)
@click.option(
    "--valid", metavar="DURATION", help="How long the token is valid: 30d.  [default: the scheduler's]"
)
@click.option("--note", default="", metavar="TEXT", help="A note on the purpose of the token.")
@LIVE
def create(user: str, role: str, valid: str | None, note: str, session: Session) -> None:
    """Create a token. Its secret is shown once."""
    valid_s = length_s("--valid", valid) if valid else 0.0
    with session.client(changes=True) as client:
        from gavel.client import Role

        new = client.create_token(user, Role(role), valid_s=valid_s, note=note)
    if session.as_json:
        print_json(new)
        return
    # Only the secret goes to standard output.
    expires = ago(new.token.expires, datetime.now(UTC))
    say(f"token {new.token.id} for {new.token.user} ({new.token.role.value}), expires {expires}:")
    echo(new.secret)
    say("it is not shown again; use it with `gavel login` or GAVEL_TOKEN")


@token.command("list")
@click.option("-u", "--user", default="", metavar="USER", help="Only the tokens of this user.")
@LIVE
def list_(user: str, session: Session) -> None:
    """List tokens, without their secrets."""
    with session.client() as client:
        tokens = client.tokens(user)
    now = datetime.now(UTC)
    rows = [
        (
            token.id,
            token.user,
            token.role.value,
            "revoked" if token.revoked else ago(token.expires, now),
            ago(token.used, now),
            token.note,
        )
        for token in tokens
    ]
    session.show(tokens, COLUMNS, rows, "no tokens")


@token.command()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="All certificates of this node; may be repeated.",
)
@LIVE
def revoke(ids: tuple[str, ...], nodes: tuple[str, ...], session: Session) -> None:
    """Revoke tokens, or the certificates of nodes.

    A revoked node is disconnected at once, and its jobs start elsewhere when their leases have ended; run `gavel drain`
    first to let them save and leave. The node may join again, with another token.
    """

    def token_in_words(name: str, token: Token) -> str:
        return f"revoked {token.id} of {token.user}"

    def node_in_words(name: str, node: RevokedNode) -> str:
        linked = "was linked" if node.was_linked else "was not linked"
        return f"revoked node {node.node}, which {linked}"

    if not ids and not nodes:
        raise Fault("name tokens by their ids (`gavel token list`), or a node with --node")
    with session.client(changes=True) as client:
        tokens, failed, code = session.do_each("token", ids, client.revoke_token, token_in_words)
        revoked_nodes, failed_nodes, node_code = session.do_each(
            "node", nodes, client.revoke_node, node_in_words
        )
    if session.as_json:
        print_json({"tokens": tokens, "nodes": revoked_nodes, "failed": [*failed, *failed_nodes]})
    sys.exit(code or node_code)


@token.command()
@LIVE
def revoked(session: Session) -> None:
    """List the nodes that were revoked with `gavel token revoke --node`."""
    with session.client() as client:
        nodes = client.revoked_nodes()
    now = datetime.now(UTC)
    rows = [
        (node.node, ago(node.revoked, now), "joined again" if node.joined_again else "") for node in nodes
    ]
    session.show(nodes, REVOKED_COLUMNS, rows, "no node is revoked")


@token.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@LIVE
def unrevoke(nodes: tuple[str, ...], session: Session) -> None:
    """Undo a mistaken revocation of nodes.

    All certificates of the node become valid again, even one that was lost. If a key was lost, let the node join again
    with another token instead: then only its new certificate is valid.
    """

    def in_words(node: str, result: str) -> str:
        return f"node {node}: all its certificates are valid again"

    with session.client(changes=True) as client:
        restored, failed, code = session.do_each("node", nodes, client.unrevoke_node, in_words)
    if session.as_json:
        print_json({"nodes": restored, "failed": failed})
    sys.exit(code)


@token.command()
@click.option("--node", default="", metavar="NODE", help="The only node that may use the token.")
@click.option("--valid", metavar="DURATION", help="How long the token is valid.  [default: the scheduler's]")
@LIVE
def join(node: str, valid: str | None, session: Session) -> None:
    """Create a one-time token for a node to join with."""
    valid_s = length_s("--valid", valid) if valid else 0.0
    with session.client(changes=True) as client:
        new = client.create_join_token(node, valid_s=valid_s)
    if session.as_json:
        print_json(new)
        return
    # Only the secret goes to standard output.
    left = f", for {span((new.expires - datetime.now(UTC)).total_seconds())}" if new.expires else ""
    say(f"valid once, for {node or 'any new node'}{left}:")
    echo(new.secret)
    if new.ca_fingerprint:
        say(f"the scheduler's CA is {new.ca_fingerprint}")
