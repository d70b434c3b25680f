"""The findings that `gavel doctor` and `gavel fsck` report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "bad"]

# Before this version, SQLite can damage a database when two connections write or checkpoint at once. The scheduler
# itself is safe, because it writes each file over one connection; other programs that open its files are a danger.
SQLITE_SOUND = (3, 51, 3)


class Finding(NamedTuple):
    """One result of a check, and its remedy."""

    level: Level
    # What the check found.
    what: str
    remedy: str = ""
