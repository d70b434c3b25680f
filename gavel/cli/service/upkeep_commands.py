"""Commands that look after a scheduler's data: doctor, backup, restore, fsck."""

from __future__ import annotations

import click

from gavel.cli.io.options import ADDRESS, JSON, LIVE


@click.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's file of settings.")
@click.option("--data-dir", metavar="DIR", help="Where the scheduler keeps its data.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@ADDRESS
def doctor(
    path: str | None, data_dir: str | None, as_json: bool, address: str | None, context: str | None
) -> None:
    """Look for what may go wrong on this machine, and say what to do about it.

    Modules, ports, clocks, disk, SQLite, keys, GPU driver; and of a scheduler that answers, its nodes and warnings.
    Where the scheduler is elsewhere, it and the GPUs of this machine. Exit code 1 when something is wrong.
    """
    from gavel.cli.installation import foreign_modules, import_ours_first

    foreign = foreign_modules()
    if foreign:
        import_ours_first()
    from gavel.cli.service.doctor import doctor

    doctor(foreign, path, data_dir, as_json, address, context)


@click.command()
@click.argument("archive", type=click.Path(dir_okay=False))
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's file of settings.")
@click.option("--data-dir", metavar="DIR", help="Where the scheduler keeps its data.")
@click.option("--packages", is_flag=True, help="Uploaded work directories too.")
@LIVE
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

    While the scheduler runs it makes the archive itself, for admins; it need not be stopped, and may be elsewhere.
    """
    from gavel.cli.service.backup import backup

    backup(archive, path, data_dir, packages, as_json, address, context)


@click.command()
@click.argument("archive", type=click.Path(exists=True, dir_okay=False))
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's file of settings.")
@click.option("--data-dir", metavar="DIR", help="The new data directory; it must be empty.")
@JSON
def restore(archive: str, path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Make a data directory from ARCHIVE: all of it, or nothing if anything is wrong with it."""
    from gavel.cli.service.backup import restore

    restore(archive, path, data_dir, as_json)


@click.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="The scheduler's file of settings.")
@click.option("--data-dir", metavar="DIR", help="Where the scheduler keeps its data.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def fsck(path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Check a data directory: files, records, and whether its history keeps every promise.

    Nothing is changed. Exit code 1 when something is wrong. Stop the scheduler first.
    """
    from gavel.cli.service.fsck import fsck

    fsck(path, data_dir, as_json)
