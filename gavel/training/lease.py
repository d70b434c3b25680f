"""The lease as a file: how long this process may run.

The agent replaces the file as a whole. A file that is missing or unreadable leaves the last known lease in force.

The time that matters for saving is `kill_s`. Before it no other attempt of the job runs: the scheduler gives the GPUs
away only when the exit of this attempt is confirmed, or when the end of the lease and a margin have passed, which is at
`kill_s` or later (an agent whose patience exceeds the margin is refused). From `kill_s` on this process should be dead,
another attempt may begin at any time, and nothing may be saved.
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
    """Three times of this machine's monotonic clock: when to save and end, get SIGTERM, get SIGKILL."""

    ask_s: float
    signal_s: float
    kill_s: float
    why: str = ""

    def time_left_s(self, now_s: float) -> float:
        """Return the time left until the job should save and end."""
        return max(0.0, self.ask_s - now_s)

    def late_s(self, now_s: float) -> float | None:
        """Return for how long another attempt may have run; None while this one may still save."""
        return now_s - self.kill_s if now_s >= self.kill_s else None


class LeaseFile:
    """`lease.json`, read again only when it has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._version: tuple[int, int, int, int] | None = None
        self._asleep_s = asleep_s()
        self.lease: Lease | None = None

    def now_s(self) -> float:
        """Return the time on the clock of the lease, which also runs while this process or the machine is suspended.

        The lease uses the monotonic clock, which stands still while the machine is suspended. So the time for which
        the machine has slept since the lease was read is added.
        """
        return running_s() - self._asleep_s

    def read(self) -> Lease | None:
        """Return the newest lease that could be read; None if there has been none."""
        try:
            status = os.stat(self._path)
            version = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if version != self._version:
                with open(self._path, "rb") as file:
                    data = file.read(FILE_BYTES_MAX)
                self.lease = parse(data) or self.lease
                self._version, self._asleep_s = version, asleep_s()
        except OSError:
            # Missing or unreadable: the last known lease stays in force.
            pass
        return self.lease


def parse(data: bytes) -> Lease | None:
    """Parse the content of a lease file; return None if it is not a lease."""
    try:
        fields = json.loads(data)
        moments = [fields["ask_s"], fields["signal_s"], fields["kill_s"]]
        why = fields.get("why", "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not all(type(moment) in (int, float) and math.isfinite(moment) for moment in moments):
        return None
    ask_s, signal_s, kill_s = map(float, moments)
    return Lease(ask_s, signal_s, kill_s, why if isinstance(why, str) else "")


def running_s() -> float:
    """Return the seconds since the machine started, including those in which it was suspended (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def asleep_s() -> float:
    """Return how long the machine has been suspended since it started.

    A process that is stopped between the two readings gets too small a number, and so underestimates its lease.
    """
    running = running_s()
    return running - time.monotonic()
