"""`gavel login` and `gavel context`: several clusters, and the one to use by default."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.completion import complete_contexts
from gavel.cli.io.options import JSON
from gavel.cli.io.outputs import echo, say
from gavel.cli.io.quiet_grpc import with_quiet_grpc
from gavel.cli.io.session import MISSING, errors_as_faults, print_json
from protos.files.errors import suggest

if TYPE_CHECKING:
    from gavel.client.settings import Contexts

TOKEN_CHARS_MAX = 4096


@click.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--ca", type=click.Path(), metavar="FILE", help="The scheduler's CA certificate.")
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input instead of asking.")
@JSON
@with_quiet_grpc
def login(name: str, address: str, ca: str | None, token_stdin: bool, as_json: bool) -> None:
    """Store a cluster under NAME, with your token for it, and use it from now on."""
    from gavel.client import Client
    from gavel.client.settings import Context, Contexts, checked_address

    stored = _contexts()
    with errors_as_faults():
        address = checked_address(address)
    token = _read_token(token_stdin)
    with errors_as_faults():
        client = Client(address, token=token, ca=ca or "", retry_s=0.0)
    # Only a cluster whose scheduler accepts the token is stored.
    with client, errors_as_faults(client):
        identity = client.who_am_i()
    new = Context(address, token, str(Path(ca).absolute()) if ca else "")
    _write(Contexts(name, {**stored.contexts, name: new}))
    if as_json:
        print_json({"name": name, "address": address, "ca": new.ca, "identity": identity})
        return
    echo(f"{name}: {address}, as {identity.user} ({identity.role.value}); used from now on")


def _read_token(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline(TOKEN_CHARS_MAX).strip()
    if not sys.stdin.isatty():
        raise Fault("there is no terminal to ask for the token; use --token-stdin and pipe it in")
    token: str = click.prompt(
        "token (empty: none)", default="", hide_input=True, show_default=False, err=True
    )
    return token.strip()


@click.command()
@click.argument("name", required=False, shell_complete=complete_contexts)
@click.option("--remove", is_flag=True, help="Forget the context and its token.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_quiet_grpc
def context(name: str | None, remove: bool, as_json: bool) -> None:
    """List the stored clusters, or use NAME from now on."""
    stored = _contexts()
    if name is None:
        if remove:
            raise Fault("--remove: give the NAME of a context")
        _show(stored, as_json)
        return
    if name not in stored.contexts:
        raise Fault(f"there is no context '{name}'; {suggest(name, stored.contexts)}", MISSING)
    if remove:
        rest = {other: context for other, context in stored.contexts.items() if other != name}
        _write(replace(stored, current="" if stored.current == name else stored.current, contexts=rest))
    else:
        _write(replace(stored, current=name))
    if as_json:
        _show(_contexts(), as_json)
    else:
        echo(f"{name} is {'forgotten' if remove else 'used from now on'}")


def _show(stored: Contexts, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "current": name == stored.current,
                    "address": context.address,
                    "ca": context.ca,
                }
                for name, context in stored.contexts.items()
            ]
        )
        return
    if not stored.contexts:
        say("none; `gavel login NAME HOST:PORT` stores one")
    for name, context in stored.contexts.items():
        echo(f"{'*' if name == stored.current else ' '} {name}  {context.address}")


def _contexts() -> Contexts:
    from gavel.client.settings import config_path, read_contexts

    with errors_as_faults():
        return read_contexts(config_path(os.environ))


def _write(contexts: Contexts) -> None:
    from gavel.client.settings import config_path, write_contexts

    path = config_path(os.environ)
    with errors_as_faults(), refusing(OSError, subject=str(path)):
        write_contexts(path, contexts)
