"""`gavel fsck`, and the report of findings, which `gavel doctor` prints, too."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import refusing
from gavel.cli.io.options import CONFIG, DATA_DIR, FINDINGS_AS_JSON
from gavel.cli.io.outputs import print_data

if TYPE_CHECKING:
    from scheduler.live.config import DaemonConfig
    from scheduler.live.data.findings import Finding

SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}


@click.command()
@CONFIG
@DATA_DIR
@FINDINGS_AS_JSON
def fsck(path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Check a data directory: its files, its records, and whether its history breaks a guarantee.

    A guarantee is, for example, that a job ends only once. Nothing is changed. Exit code 1 if something is wrong. Stop
    the scheduler first.
    """
    from scheduler.live.data.fsck import check_data_directory

    report(check_data_directory(settings(path, data_dir).folder), as_json)


def settings(path: str | None, data_dir: str | None) -> DaemonConfig:
    """Return the settings of the scheduler that the options name."""
    from protos.files.settings import ConfigError
    from scheduler.live.config import daemon_config

    with refusing(ConfigError):
        return daemon_config(path, {"data_dir": data_dir})


def report(findings: Iterable[Finding], as_json: bool) -> None:
    """Print each finding at once; exit with 1 if one of them is bad."""
    reported = []
    for finding in findings:
        reported.append(finding)
        if not as_json:
            word, colour = SIGNS[finding.level]
            click.echo(f"{click.style(word, fg=colour)}  {finding.what}")
            if finding.remedy and finding.level != "ok":
                click.echo(f"      → {finding.remedy}")
    bad = sum(finding.level == "bad" for finding in reported)
    if as_json:
        data = {"sound": not bad, "findings": [finding._asdict() for finding in reported]}
        print_data(data)
    else:
        click.echo(f"{bad} of {len(reported)} checks found something wrong" if bad else "nothing is wrong")
    sys.exit(1 if bad else 0)
