"""`gavel backup` and `gavel restore`."""

from __future__ import annotations

from pathlib import Path

import click

import gavel
from gavel.cli.faults import refusing
from gavel.cli.io.options import ADDRESS, CONFIG, DATA_DIR, JSON
from gavel.cli.io.outputs import echo, print_data
from gavel.cli.io.quiet_grpc import with_quiet_grpc
from gavel.cli.io.session import errors_as_faults
from gavel.cli.service.fsck import settings
from gavel.client.views.units import size


@click.command()
@click.argument("archive", type=click.Path(dir_okay=False))
@CONFIG
@DATA_DIR
@click.option("--packages", is_flag=True, help="Include uploaded work directories.")
@JSON
@ADDRESS
@with_quiet_grpc
def backup(
    archive: str,
    path: str | None,
    data_dir: str | None,
    packages: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """Write journal, tokens and keys to ARCHIVE, a .tar.gz file that only you can read.

    If the scheduler runs, here or elsewhere, it makes the archive itself, for admins only, and keeps running.
    """
    from gavel.cli.service.locate import client_of, remote_client, running_scheduler

    target = Path(archive)
    with errors_as_faults():
        client = remote_client(path, data_dir, address, context)
        folder = settings(path, data_dir).folder
        if client is None and (scheduler := running_scheduler(folder)) is not None:
            client = client_of(scheduler)
    if client is not None:
        with client, errors_as_faults(client), refusing(OSError, subject=f"cannot write {target}"):
            size_bytes = client.backup(target, packages=packages)
        made_by = client.connection.address
        words = f"{size(size_bytes)}, made by the scheduler at {made_by}"
    else:
        from scheduler.live.data import backup

        with refusing(backup.BackupError):
            written = backup.backup(folder, target, gavel.__version__, packages=packages)
        size_bytes, made_by = written.size_bytes, None
        words = f"{written.records} records, {size(size_bytes)}"
    if as_json:
        print_data({"archive": str(target), "size_bytes": size_bytes, "made_by": made_by})
    else:
        echo(f"{target}: {words}; keep it where only you can read it")


@click.command()
@click.argument("archive", type=click.Path(exists=True, dir_okay=False))
@CONFIG
@click.option("--data-dir", metavar="DIR", help="The new data directory; it must be empty.")
@JSON
def restore(archive: str, path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Restore a data directory from ARCHIVE: completely, or not at all if the archive is damaged."""
    from scheduler.live.data import backup

    folder = settings(path, data_dir).folder
    with refusing(backup.BackupError):
        restored = backup.restore(Path(archive), folder)
    if as_json:
        print_data({"data_dir": str(folder), "records": restored.records})
        return
    echo(f"restored to {folder}: {restored.records} records; everything after the backup is lost")
    if restored.data_dir_was:
        echo(f"its gavel.toml had data_dir {restored.data_dir_was}; it now has {folder.absolute()}")
    echo("start the scheduler: it does not reuse numbers that may have been assigned after the backup")
