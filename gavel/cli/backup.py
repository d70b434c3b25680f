"""The bodies of `gavel backup` and `gavel restore`."""

from __future__ import annotations

import json
from pathlib import Path

import click

import gavel
from gavel.cli import Fault
from gavel.cli.findings import settings
from gavel.cli.value_words import size_words
from scheduler.live.backup import Backup, BackupError
from scheduler.live.backup import backup as make
from scheduler.live.backup import restore as unmake


def backup(archive: str, path: str | None, data_dir: str | None, packages: bool) -> None:
    """By the daemon if it runs, else here."""
    folder, target = settings(path, data_dir).folder, Path(archive)
    address = _running(folder)
    try:
        if address is None:
            _say(make(folder, target, gavel.__version__, packages=packages), target)
        else:
            _from_daemon(address, target, packages)
    except BackupError as error:
        raise Fault(str(error)) from None


def restore(archive: str, path: str | None, data_dir: str | None) -> None:
    """Into an empty directory."""
    folder = settings(path, data_dir).folder
    try:
        found = unmake(Path(archive), folder)
    except BackupError as error:
        raise Fault(str(error)) from None
    click.echo(f"restored to {folder}: {found.records} records; what came after the backup is lost")
    click.echo("start the scheduler: it uses no number that may have been given away since")


def _running(folder: Path) -> str | None:
    """Where the daemon of this directory listens, if one does."""
    try:
        where = json.loads((folder / "daemon.json").read_text())
        Path(f"/proc/{int(where['pid'])}").stat()
        return str(where["listen"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _from_daemon(address: str, target: Path, packages: bool) -> None:
    from gavel.client import Client, GavelError

    try:
        with Client(address) as client:
            size_bytes = client.backup(target, packages=packages)
    except GavelError as error:
        raise Fault(str(error)) from None
    click.echo(
        f"{target}: {size_words(size_bytes)}, made by the scheduler at {address}; keep it where only you can read"
    )


def _say(made: Backup, target: Path) -> None:
    click.echo(
        f"{target}: {made.records} records, {size_words(made.size_bytes)}; keep it where only you can read"
    )
