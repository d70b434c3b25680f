"""`gavel login` and `gavel context`: several clusters, and the one that is meant when nothing else is said."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from gavel.cli.faults import Fault
from gavel.cli.io.session import MISSING, failure, one_line, print_json
from gavel.cli.io.wording import nearest, printable
from gavel.client import Client
from gavel.client.settings import (
    Context,
    Contexts,
    checked_address,
    config_path,
    read_contexts,
    write_contexts,
)

TOKEN_CHARS_MAX = 4096


def login(name: str, address: str, ca: str | None, token_stdin: bool, as_json: bool) -> None:
    """The body of `gavel login`. Stored only if the scheduler knows the token."""
    path = config_path(os.environ)
    with one_line():
        known = read_contexts(path)
        address = checked_address(address)
    token = _token(token_stdin)
    with one_line():
        client = Client(address, token=token, ca=ca or "", retry_s=0.0)
    with client, one_line(client):
        who = client.who_am_i()
    stored = Context(address, token, str(Path(ca).absolute()) if ca else "")
    _write(path, Contexts(name, {**known.contexts, name: stored}))
    if as_json:
        print_json({"name": name, "address": address, "ca": stored.ca, "identity": who})
        return
    click.echo(f"{printable(name)}: {address}, as {printable(who.user)} ({who.role.value}); used from now on")


def _token(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline(TOKEN_CHARS_MAX).strip()
    if not sys.stdin.isatty():
        raise Fault("there is no terminal to ask for the token on: say --token-stdin, and pipe it in")
    said: str = click.prompt("token (empty: none)", default="", hide_input=True, show_default=False, err=True)
    return said.strip()


def context(name: str | None, remove: bool, as_json: bool) -> None:
    """The body of `gavel context`."""
    path = config_path(os.environ)
    with one_line():
        known = read_contexts(path)
    if name is None:
        if remove:
            raise Fault("--remove: say which")
        _show(known, as_json)
        return
    if name not in known.contexts:
        raise failure(MISSING, f"there is no context '{printable(name)}'{nearest(name, known.contexts)}")
    if remove:
        left = {one: value for one, value in known.contexts.items() if one != name}
        _write(path, Contexts("" if known.current == name else known.current, left))
    else:
        _write(path, replace(known, current=name))
    if not as_json:
        click.echo(f"{printable(name)} is {'forgotten' if remove else 'used from now on'}")
        return
    with one_line():
        _show(read_contexts(path), as_json)


def _show(known: Contexts, as_json: bool) -> None:
    if as_json:
        found = [
            {"name": name, "current": name == known.current, "address": one.address, "ca": one.ca}
            for name, one in known.contexts.items()
        ]
        print_json(found)
        return
    if not known.contexts:
        click.echo("none; `gavel login NAME HOST:PORT` stores one", err=True)
    for name, one in known.contexts.items():
        click.echo(f"{'*' if name == known.current else ' '} {printable(name)}  {printable(one.address)}")


def _write(path: Path, contexts: Contexts) -> None:
    with one_line():
        try:
            write_contexts(path, contexts)
        except OSError as error:
            raise Fault(f"{path}: {(error.strerror or str(error)).lower()}") from None
