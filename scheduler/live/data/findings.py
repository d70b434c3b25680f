"""Findings of checks of this machine or of a data directory, for `gavel doctor` and `gavel fsck`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "bad"]

# Older versions can damage a log when two connections checkpoint at once. The scheduler uses one connection.
SQLITE_SOUND = (3, 51, 3)


class Finding(NamedTuple):
    """One result of a check, and what to do about it."""

    level: Level
    what: str
    remedy: str = ""
