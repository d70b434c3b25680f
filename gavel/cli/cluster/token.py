"""`gavel token`: who may speak to the scheduler."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from gavel.cli.faults import Fault
from gavel.cli.io.session import OK, exit_code, print_json, scheduler
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.units import ago, length_s, span
from gavel.cli.io.wording import printable
from gavel.client import GavelError, Role
from gavel.client.errors import NotReachable
from gavel.client.results import RevokedNode, Token

COLUMNS = (
    Column("id", most=20),
    Column("user", most=16),
    Column("role"),
    Column("expires"),
    Column("last used"),
    Column("note"),
)


def create(
    user: str,
    role: str,
    valid: str | None,
    note: str,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The body of `gavel token create`: the secret alone on standard output, the rest on standard error."""
    valid_s = length_s("--valid", valid) if valid else 0.0
    with scheduler(address, context, changes=True) as client:
        made = client.create_token(user, Role(role), valid_s=valid_s, note=note)
    if as_json:
        print_json(made)
        return
    token = made.token
    until = ago(token.expires, datetime.now(UTC))
    click.echo(
        f"token {token.id} for {printable(token.user)} ({token.role.value}), expires {until}:", err=True
    )
    click.echo(made.secret)
    click.echo("it is not shown again; `gavel login` or GAVEL_TOKEN takes it", err=True)


def list_(user: str, as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token list`."""
    with scheduler(address, context) as client:
        tokens = client.tokens(user)
    if as_json:
        print_json(tokens)
        return
    if not tokens:
        click.echo("no tokens", err=True)
        return
    now = datetime.now(UTC)
    show_table(
        COLUMNS,
        [
            (
                token.id,
                token.user,
                token.role.value,
                "revoked" if token.revoked else ago(token.expires, now),
                ago(token.used, now),
                token.note,
            )
            for token in tokens
        ],
    )


def revoke(
    ids: tuple[str, ...],
    nodes: tuple[str, ...],
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The body of `gavel token revoke`."""
    if not ids and not nodes:
        raise Fault("name tokens by their ids (`gavel token list`), or a node with --node")
    code, failed = OK, []
    done: dict[str, list[Token | RevokedNode]] = {"token": [], "node": []}
    with scheduler(address, context, changes=True) as client:
        for kind, name in dict.fromkeys(
            [*(("token", one) for one in ids), *(("node", one) for one in nodes)]
        ):
            try:
                revoked = client.revoke_token(name) if kind == "token" else client.revoke_node(name)
            except NotReachable:
                raise
            except GavelError as error:
                code = code or exit_code(error)
                failed.append({kind: name, "reason": error.reason, "message": error.message})
                if not as_json:
                    click.echo(f"gavel token revoke: {printable(error.message)}", err=True)
                continue
            done[kind].append(revoked)
            if not as_json:
                click.echo(f"revoked {printable(_words(revoked))}")
    if as_json:
        print_json({"tokens": done["token"], "nodes": done["node"], "failed": failed})
    sys.exit(code)


def revoked(as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token revoked`."""
    with scheduler(address, context) as client:
        nodes = client.revoked_nodes()
    if as_json:
        print_json(nodes)
        return
    if not nodes:
        click.echo("no node is revoked", err=True)
        return
    now = datetime.now(UTC)
    rows = [(one.node, ago(one.revoked, now), "joined again" if one.joined_again else "") for one in nodes]
    show_table((Column("node", most=40), Column("revoked"), Column("since then")), rows)


def unrevoke(nodes: tuple[str, ...], as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token unrevoke`."""
    code, done, failed = OK, [], []
    with scheduler(address, context, changes=True) as client:
        for node in dict.fromkeys(nodes):
            try:
                done.append(client.unrevoke_node(node))
            except NotReachable:
                raise
            except GavelError as error:
                code = code or exit_code(error)
                failed.append({"node": node, "reason": error.reason, "message": error.message})
                if not as_json:
                    click.echo(f"gavel token unrevoke: {printable(error.message)}", err=True)
                continue
            if not as_json:
                click.echo(f"node {printable(node)}: all its certificates count again")
    if as_json:
        print_json({"nodes": done, "failed": failed})
    sys.exit(code)


def _words(revoked: Token | RevokedNode) -> str:
    if isinstance(revoked, RevokedNode):
        return (
            f"node {revoked.node}{', which was linked' if revoked.was_linked else ', which was not linked'}"
        )
    return f"{revoked.id} of {revoked.user}"


def join(node: str, valid: str | None, as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token join`: the secret alone on standard output."""
    valid_s = length_s("--valid", valid) if valid else 0.0
    with scheduler(address, context, changes=True) as client:
        made = client.create_join_token(node, valid_s=valid_s)
    if as_json:
        print_json(made)
        return
    whose = f"for {printable(node)}" if node else "for any new node"
    valid = f", for {span((made.expires - datetime.now(UTC)).total_seconds())}" if made.expires else ""
    click.echo(f"good once, {whose}{valid}:", err=True)
    click.echo(made.secret)
    if made.ca_fingerprint:
        click.echo(f"the scheduler's CA is {made.ca_fingerprint}", err=True)
