"""`gavel init`: set up keys, a certificate, the first admin's token, and a settings file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import click

from gavel.cli.faults import Fault, reason, refusing
from gavel.cli.io.options import JSON
from gavel.cli.io.outputs import print_data


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address at which users and nodes reach this machine; may be repeated.",
)
@click.option("--user", metavar="NAME", help="The user of the first token.  [default: you]")
@click.option(
    "--port", type=click.IntRange(1, 65534), default=7070, show_default=True, help="The port to listen on."
)
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Write the token to this file.")
@click.option("--renew", is_flag=True, help="Only create a new certificate for the server.")
@click.option(
    "--token",
    "only_token",
    is_flag=True,
    help="Only create another admin's token; the scheduler must be stopped.",
)
@JSON
def init(
    folder: str,
    hosts: tuple[str, ...],
    user: str | None,
    port: int,
    token_file: str | None,
    renew: bool,
    only_token: bool,
    as_json: bool,
) -> None:
    """Set up a scheduler in DIR: keys, certificates, the first admin's token, and a settings file.

    Without --host, only this machine can reach the scheduler. Existing files are never overwritten.
    """
    from gavel.cli.service import data_directory
    from scheduler.model.errors import InvalidSpec

    directory = Path(folder).expanduser().absolute()
    user = user or os.environ.get("USER") or os.environ.get("LOGNAME") or "admin"
    try:
        with refusing(InvalidSpec):
            if renew:
                data, lines = data_directory.renew(directory, hosts)
            elif only_token:
                data, lines = data_directory.another_token(directory, user, token_file)
            else:
                data, lines = data_directory.set_up(directory, hosts, user, port, token_file)
    except sqlite3.Error as error:
        raise Fault(f"{directory / 'access.db'}: {error}; is it a file of another program?") from None
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        raise Fault(f"{prefix}{reason(error)}") from None
    if as_json:
        print_data(data)
    else:
        click.echo("\n".join(lines))
