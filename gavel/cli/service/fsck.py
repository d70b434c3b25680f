"""The body of `gavel fsck`."""

from __future__ import annotations

from gavel.cli.service.findings import report, settings
from scheduler.live.data.fsck import look_at


def fsck(path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Look at everything in the data directory."""
    report(look_at(settings(path, data_dir).folder), as_json)
