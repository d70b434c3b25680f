"""The lease as a file: until when this process may run.

The agent replaces the file as a whole; a file that is missing or makes no sense changes nothing of what was
known before.

The moment that counts for saving is `kill_s`. Before it no other attempt of the job runs: the scheduler gives its GPUs
to nobody until the exit of this attempt is confirmed, or until the lease's end and a margin have passed, and that is
`kill_s` or later (an agent whose patience is longer than the margin is refused). From `kill_s` on this process should
be dead, another attempt may begin at any time, and nothing may be saved.
"""

from __future__ import annotations

import json
import math
import os
import time
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

    def time_left_s(self, now_s: float) -> float:
        """Until the job should save and end."""
        return max(0.0, self.ask_s - now_s)

    def late_s(self, now_s: float) -> float | None:
        """For how long another attempt may have been running; None while this one may still save."""
        return now_s - self.kill_s if now_s >= self.kill_s else None


class LeaseFile:
    """`lease.json`, read again only when it has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._seen: tuple[int, int, int, int] | None = None
        self._asleep_s = asleep_s()
        self.lease: Lease | None = None

    def now_s(self) -> float:
        """The time on the clock of the lease, which runs on while this process or the whole machine is suspended.

        The moments are of the monotonic clock, which stands still while the machine is suspended. So what has been
        slept since the lease was read is added.
        """
        return running_s() - self._asleep_s

    def read(self) -> Lease | None:
        """The lease as it stands: the newest one that could be read, None while there was none."""
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if seen != self._seen:
                with open(self._path, "rb") as file:
                    data = file.read(FILE_BYTES_MAX)
                self.lease = parse(data) or self.lease
                self._seen, self._asleep_s = seen, asleep_s()
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


def running_s() -> float:
    """Seconds since the machine was started, with those in which it was suspended (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def asleep_s() -> float:
    """How long the machine has been suspended since it was started.

    A process stopped between the two looks gets too small a number, and takes its lease for shorter than it is.
    """
    running = running_s()
    return running - time.monotonic()
