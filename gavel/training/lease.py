"""The lease as a file: until when this process may run.

The agent replaces the file as a whole; a file that is missing or makes no sense changes nothing of what was
known before.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES_MAX = 65536


@dataclass(frozen=True)
class Lease:
    """Three moments of this machine's monotonic clock: save and end, be signalled, be killed."""

    ask_s: float
    signal_s: float
    kill_s: float
    why: str = ""


class LeaseFile:
    """`lease.json`, read again only when it has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._seen: tuple[int, int, int, int] | None = None
        self.lease: Lease | None = None

    def read(self) -> Lease | None:
        """The lease as it stands: the newest one that could be read, None while there was none."""
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if seen != self._seen:
                with open(self._path, "rb") as file:
                    data = file.read(FILE_BYTES_MAX)
                self.lease = parse(data) or self.lease
                self._seen = seen
        except OSError:
            pass  # gone, or not ours to read: what was known holds
        return self.lease


def parse(data: bytes) -> Lease | None:
    """The lease in a file's content, or None if there is no sense in it."""
    try:
        words = json.loads(data)
        moments = [words["ask_s"], words["signal_s"], words["kill_s"]]
        why = words.get("why", "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not all(type(moment) in (int, float) and math.isfinite(moment) for moment in moments):
        return None
    ask_s, signal_s, kill_s = map(float, moments)
    return Lease(ask_s, signal_s, kill_s, why if isinstance(why, str) else "")
