"""The findings that `gavel doctor` and `gavel fsck` report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "bad"]

# Older versions of SQLite can damage a write-ahead log when two connections checkpoint at once. The scheduler uses one
# connection.
SQLITE_SOUND = (3, 51, 3)


class Finding(NamedTuple):
    """One result of a check, and its remedy."""

    level: Level
    what: str
    remedy: str = ""
