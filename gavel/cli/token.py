"""`gavel token`: who may speak to the scheduler."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from gavel.cli.columns import Column, show_table
from gavel.cli.connecting import OK, exit_code, print_json, scheduler
from gavel.cli.durations import length_s
from gavel.cli.live_words import ago
from gavel.cli.wording import printable
from gavel.client import GavelError, Role
from gavel.client.errors import NotReachable

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


def revoke(ids: tuple[str, ...], as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token revoke`."""
    code, done, failed = OK, [], []
    with scheduler(address, context, changes=True) as client:
        for name in dict.fromkeys(ids):
            try:
                token = client.revoke_token(name)
            except NotReachable:
                raise
            except GavelError as error:
                code = code or exit_code(error)
                failed.append({"token": name, "reason": error.reason, "message": error.message})
                if not as_json:
                    click.echo(f"gavel token revoke: {printable(error.message)}", err=True)
                continue
            done.append(token)
            if not as_json:
                click.echo(f"revoked {token.id} of {printable(token.user)}")
    if as_json:
        print_json({"tokens": done, "failed": failed})
    sys.exit(code)


def join(node: str, valid: str | None, as_json: bool, address: str | None, context: str | None) -> None:
    """The body of `gavel token join`: the secret alone on standard output."""
    valid_s = length_s("--valid", valid) if valid else 0.0
    with scheduler(address, context, changes=True) as client:
        made = client.create_join_token(node, valid_s=valid_s)
    if as_json:
        print_json(made)
        return
    whose = f"for {printable(node)}" if node else "for any new node"
    click.echo(f"good once, {whose}, until {ago(made.expires, datetime.now(UTC))}:", err=True)
    click.echo(made.secret)
    if made.ca_fingerprint:
        click.echo(f"the scheduler's CA is {made.ca_fingerprint}", err=True)
