"""`gavel doctor`: what may go wrong on this machine, and what to do about it."""

from __future__ import annotations

import click

from gavel.cli.installation import foreign_modules, import_ours_first
from gavel.cli.io.options import ADDRESS, CONFIG, DATA_DIR, FINDINGS_AS_JSON, with_quiet_grpc


@click.command()
@CONFIG
@DATA_DIR
@FINDINGS_AS_JSON
@ADDRESS
@with_quiet_grpc
def doctor(
    path: str | None, data_dir: str | None, as_json: bool, address: str | None, context: str | None
) -> None:
    """Look for what may go wrong on this machine, and say what to do about it.

    Modules, ports, clocks, disk, SQLite, keys, GPU driver; and of a scheduler that answers, its nodes and warnings.
    Where the scheduler is elsewhere, it and the GPUs of this machine. Exit code 1 when something is wrong.
    """
    # Foreign modules end other commands; this one reports them, and goes on with ours.
    foreign = foreign_modules()
    if foreign:
        import_ours_first()
    from gavel.cli.io.session import one_line
    from gavel.cli.service.checks import checks
    from gavel.cli.service.fsck import report, settings
    from gavel.cli.service.locate import elsewhere

    with one_line():
        client = elsewhere(path, data_dir, address, context)
    report(checks(settings(path, data_dir), client, foreign), as_json)
