"""`gavel doctor`: check this machine and the scheduler for problems."""

from __future__ import annotations

import click

from gavel.cli.installation import foreign_modules, import_ours_first
from gavel.cli.io.options import ADDRESS, CONFIG, DATA_DIR, FINDINGS_AS_JSON
from gavel.cli.io.quiet_grpc import with_quiet_grpc


@click.command()
@CONFIG
@DATA_DIR
@FINDINGS_AS_JSON
@ADDRESS
@with_quiet_grpc
def doctor(
    path: str | None, data_dir: str | None, as_json: bool, address: str | None, context: str | None
) -> None:
    """Check this machine and the scheduler for problems, and suggest remedies.

    It checks modules, ports, clocks, disk, SQLite, keys and the GPU driver, and the nodes and warnings of a scheduler
    that answers. If the scheduler is elsewhere, it checks that scheduler, and the modules and GPUs of this machine. The
    exit code is 1 if something is wrong.
    """
    # Foreign modules make other commands fail. This command reports them and continues with ours.
    foreign = foreign_modules()
    if foreign:
        import_ours_first()
    from gavel.cli.io.session import errors_as_faults
    from gavel.cli.service.checks import checks
    from gavel.cli.service.fsck import report, settings
    from gavel.cli.service.locate import remote_client

    with errors_as_faults():
        client = remote_client(path, data_dir, address, context)
    report(checks(settings(path, data_dir), client, foreign), as_json)
