"""The time of a live scheduler: seconds since 1970 that never jump and never run backward.

The wall clock is read once, at the start; from then on the monotonic clock measures how much time has passed.
Setting the wall clock therefore does not move leases.
"""

from __future__ import annotations

import time


class Clock:
    """The monotonic clock, set to the wall-clock time of its creation, or to `not_before_s` if that is later."""

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._offset_s = max(time.time(), not_before_s) - time.monotonic()

    def now_s(self) -> float:
        """Return the seconds since 1970."""
        return time.monotonic() + self._offset_s

    @property
    def drift_s(self) -> float:
        """How far the wall clock is ahead of this one, because it was set or the machine slept."""
        return time.time() - self.now_s()
