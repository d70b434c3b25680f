"""What time it is for a live scheduler: seconds since 1970, that neither jump nor run backward.

The wall clock is read once, at the start; from then on the monotonic clock says how much time has passed. An operator
who sets the wall clock moves no lease.
"""

from __future__ import annotations

import time


class Clock:
    """Wall-clock time as of its making, carried on by the monotonic clock."""

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._offset_s = max(time.time(), not_before_s) - time.monotonic()

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.monotonic() + self._offset_s

    @property
    def drift_s(self) -> float:
        """How far the wall clock is from this one: it was set, or the machine slept."""
        return time.time() - self.now_s()
