"""The time axis of pictures of runs, on which a long tail is compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from gavel.cli.policies.plot import INK

# When this fraction of the jobs has ended, the tail begins. If it takes more than TAIL_LONG of the time, it is drawn
# in TAIL_WIDTH of the width.
BODY, TAIL_LONG, TAIL_WIDTH = 0.95, 0.35, 0.15


class TimeScale(NamedTuple):
    """Places of times on the time axis, from 0 to 1: even up to `knee_h`, and even but compressed after it."""

    start_h: float
    knee_h: float
    end_h: float

    @property
    def is_compressed(self) -> bool:
        """Whether the tail is compressed."""
        return self.knee_h < self.end_h

    @property
    def note(self) -> str:
        """A remark for the heading of a picture; empty if nothing is compressed."""
        return f"; compressed after {self.knee_h:,.3g} h" if self.is_compressed else ""

    def place(self, time_h: float) -> float:
        """Return the place of a time."""
        return float(np.interp(time_h, *self._points))

    def places(self, times_h: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places of times."""
        return np.interp(times_h, *self._points)

    def times_h(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the times at these places."""
        times_h, knees = self._points
        return np.interp(places, knees, times_h)

    @property
    def _points(self) -> tuple[list[float], list[float]]:
        """Times and their places, between which the scale is even."""
        if not self.is_compressed:
            return [self.start_h, self.end_h], [0.0, 1.0]
        return [self.start_h, self.knee_h, self.end_h], [0.0, 1.0 - TAIL_WIDTH, 1.0]

    def ticks(self) -> list[float]:
        """Return round times to mark: those before the knee, and the end of a compressed tail."""
        from matplotlib.ticker import MaxNLocator

        marks = MaxNLocator(8).tick_values(self.start_h, self.knee_h)
        times_h = [float(time_h) for time_h in marks if self.start_h <= time_h <= self.knee_h]
        return [*times_h, self.end_h] if self.is_compressed else times_h

    def mark(self, axes: Axes) -> None:
        """Write the times along the axis, and mark where the compressed tail begins."""
        times_h = self.ticks()
        axes.set_xticks(
            [self.place(time_h) for time_h in times_h], [f"{time_h:,.4g} h" for time_h in times_h]
        )
        if self.is_compressed:
            axes.axvline(self.place(self.knee_h), color=INK, linewidth=0.8, linestyle=(0, (2, 2)))


def time_scale(start_h: float, ends_h: Sequence[float], end_h: float) -> TimeScale:
    """Return a scale on which a tail in which few jobs run does not take the width from the rest.

    `ends_h`: when each job ended. `end_h`: the end of the picture.
    """
    ordered = sorted(ends_h) or [end_h]
    # The end of the last job that is not among the few; of two jobs or more, one is the few.
    knee_h = ordered[max(min(int(BODY * len(ordered)), len(ordered) - 1) - 1, 0)]
    is_long = knee_h > start_h and end_h - knee_h > TAIL_LONG * (end_h - start_h)
    return TimeScale(start_h, knee_h if is_long else end_h, end_h)
