"""Findings of doctor and fsck, as lines for people or as JSON, and what they make of the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click

from gavel.cli.faults import Fault
from scheduler.config import ConfigError
from scheduler.live.config import DaemonConfig, daemon_config
from scheduler.live.data.findings import Finding

SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}


def settings(path: str | None, data_dir: str | None) -> DaemonConfig:
    """Of the daemon that is meant."""
    try:
        return daemon_config(path, {"data_dir": data_dir})
    except ConfigError as error:
        raise Fault(str(error)) from None


def report(findings: Iterable[Finding], as_json: bool) -> None:
    """Print each as it is found; exit with 1 when one is bad."""
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            word, colour = SIGNS[finding.level]
            click.echo(f"{click.style(word, fg=colour)}  {finding.what}")
            if finding.remedy and finding.level != "ok":
                click.echo(f"      → {finding.remedy}")
    bad = sum(finding.level == "bad" for finding in found)
    if as_json:
        click.echo(json.dumps({"sound": not bad, "findings": [one._asdict() for one in found]}, indent=1))
    else:
        click.echo("nothing is wrong" if not bad else f"{bad} of {len(found)} checks found something wrong")
    sys.exit(1 if bad else 0)
