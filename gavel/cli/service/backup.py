"""The bodies of `gavel backup` and `gavel restore`."""

from __future__ import annotations

from pathlib import Path

import click

import gavel
from gavel.cli.faults import Fault
from gavel.cli.io.session import one_line, print_json
from gavel.cli.io.units import size
from gavel.cli.service.findings import settings
from gavel.cli.service.locate import client_of, elsewhere, running
from gavel.client.client import Client
from scheduler.live.data.backup import BackupError
from scheduler.live.data.backup import backup as make
from scheduler.live.data.backup import restore as unmake


def backup(
    archive: str,
    path: str | None,
    data_dir: str | None,
    packages: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """By the scheduler if it runs, else here."""
    target = Path(archive)
    with one_line():
        client = elsewhere(path, data_dir, address, context)
        folder = settings(path, data_dir).folder
        if client is None and (found := running(folder)) is not None:
            client = client_of(found)
    if client is not None:
        _by_scheduler(client, target, packages, as_json)
        return
    try:
        made = make(folder, target, gavel.__version__, packages=packages)
    except BackupError as error:
        raise Fault(str(error)) from None
    if as_json:
        _tell(target, made.size_bytes, "")
    else:
        _say(target, f"{made.records} records, {size(made.size_bytes)}")


def restore(archive: str, path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Into an empty directory."""
    folder = settings(path, data_dir).folder
    try:
        found = unmake(Path(archive), folder)
    except BackupError as error:
        raise Fault(str(error)) from None
    if as_json:
        print_json({"data_dir": str(folder), "records": found.records})
        return
    click.echo(f"restored to {folder}: {found.records} records; what came after the backup is lost")
    if found.data_dir_was:
        click.echo(f"its gavel.toml named {found.data_dir_was} as data_dir; it names {folder.absolute()} now")
    click.echo("start the scheduler: it uses no number that may have been given away since")


def _by_scheduler(client: Client, target: Path, packages: bool, as_json: bool) -> None:
    with client, one_line(client):
        try:
            size_bytes = client.backup(target, packages=packages)
        except OSError as error:
            raise Fault(f"cannot write {target}: {(error.strerror or str(error)).lower()}") from None
        if as_json:
            _tell(target, size_bytes, client.connection.address)
            return
        _say(target, f"{size(size_bytes)}, made by the scheduler at {client.connection.address}")


def _say(target: Path, what: str) -> None:
    click.echo(f"{target}: {what}; keep it where only you can read")


def _tell(target: Path, size_bytes: int, made_by: str) -> None:
    print_json({"archive": str(target), "size_bytes": size_bytes, "made_by": made_by or None})
