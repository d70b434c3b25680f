"""The lease as a file: how long this process may run.

The agent replaces the file as a whole. While the file is missing or unreadable, the last known lease stays in force.

A process may save until `kill_s`, because no other attempt of the job runs before that. The scheduler gives the GPUs to
another attempt only when the exit of this one is confirmed, or when the lease has ended and a margin has passed. The
margin ends at `kill_s` or later, because the scheduler refuses agents that would kill only after the margin. From
`kill_s` on this process should be dead, another attempt may begin at any time, and nothing may be saved.
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
    """When the job should save and end (`ask_s`), gets SIGTERM and gets SIGKILL, on this machine's monotonic clock."""

    ask_s: float
    signal_s: float
    kill_s: float
    # Why the lease ends, if the agent has ended it early.
    why: str = ""
    # The mean time between failures of the GPUs, if the scheduler knows it.
    mtbf_s: float | None = None

    def time_left_s(self, now_s: float) -> float:
        """Return the time left until the job should save and end."""
        return max(0.0, self.ask_s - now_s)

    def late_s(self, now_s: float) -> float | None:
        """Return how long ago this attempt had to end; None while it may still save."""
        return now_s - self.kill_s if now_s >= self.kill_s else None


class LeaseFile:
    """`lease.json`, which is read again only after it has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._version: tuple[int, int, int, int] | None = None
        self._suspended_s = suspended_s()
        self.lease: Lease | None = None

    def now_s(self) -> float:
        """Return the time on the lease's clock, plus the time the machine was suspended since the lease was read."""
        # The monotonic clock alone does not advance while the machine is suspended.
        return since_boot_s() - self._suspended_s

    def read(self) -> Lease | None:
        """Return the newest lease that could be read; None if there has been none."""
        try:
            status = os.stat(self._path)
            version = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if version != self._version:
                with open(self._path, "rb") as file:
                    data = file.read(FILE_BYTES_MAX)
                self.lease = parse(data) or self.lease
                self._version, self._suspended_s = version, suspended_s()
        except OSError:
            # Missing or unreadable: the last known lease stays in force.
            pass
        return self.lease


def parse(data: bytes) -> Lease | None:
    """Parse the content of a lease file; return None if it is not a lease."""
    try:
        fields = json.loads(data)
        moments = [fields["ask_s"], fields["signal_s"], fields["kill_s"]]
        why, mtbf_s = fields.get("why", ""), fields.get("mtbf_s")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not all(type(moment) in (int, float) and math.isfinite(moment) for moment in moments):
        return None
    ask_s, signal_s, kill_s = map(float, moments)
    known = type(mtbf_s) in (int, float) and math.isfinite(mtbf_s) and mtbf_s > 0
    return Lease(ask_s, signal_s, kill_s, why if isinstance(why, str) else "", mtbf_s if known else None)


def since_boot_s() -> float:
    """Return the seconds since the machine started, including those in which it was suspended (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def suspended_s() -> float:
    """Return how long the machine has been suspended since it started."""
    # If the process is stopped between the two readings, the result is too small, and the lease seems to end earlier.
    running = since_boot_s()
    return running - time.monotonic()
