"""How fast a job runs by the CPUs that it has for each of its GPUs.

Rules: rates are steps per second of the whole job, and more CPUs never make it slower. Between two points the rate is
on the line between them, after the last point it stays the same, and below the first one it is proportional to CPUs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from traces.errors import BadTable
from traces.limits import CPUS, RATE

# CPUs for each GPU, and steps per second.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CpuRates:
    """The points of one curve, by ascending CPUs."""

    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        """Refuse points that are no curve."""
        if not self.points:
            raise BadTable("has no rates by CPUs", field="cpus_per_gpu", hint="give one or more")
        before = (0.0, 0.0)
        for point in self.points:
            if fault := fault_after(before, point):
                field, message, hint = fault
                raise BadTable(message, field=field, hint=hint)
            before = point

    @property
    def enough(self) -> float:
        """The fewest CPUs for each GPU with which the job is as fast as with any."""
        return self.needed(math.inf)

    def needed(self, rate: float) -> float:
        """Return the fewest CPUs for each GPU with which the job is this fast, or as fast as it can be."""
        rate = min(rate, self.points[-1][1])
        at = bisect_left(self.points, rate, key=lambda point: point[1])
        more, faster = self.points[at]
        fewer, slower = self.points[at - 1] if at else (0.0, 0.0)
        return max(fewer, more - (more - fewer) * (faster - rate) / (faster - slower))

    def rate(self, cpus_per_gpu: float) -> float:
        """Return the steps per second with these CPUs for each GPU."""
        above = bisect_left(self.points, cpus_per_gpu, key=lambda point: point[0])
        if above == len(self.points):
            return self.points[-1][1]
        more, faster = self.points[above]
        fewer, slower = self.points[above - 1] if above else (0.0, 0.0)
        # Counted from the upper point, the rate is exact there.
        return max(slower, faster - (faster - slower) * (more - cpus_per_gpu) / (more - fewer))


def fault_after(before: Point, point: Point) -> tuple[str, str, str] | None:
    """Return why a point cannot follow another one on a curve: field, message and hint; None if it can."""
    cpus, rate = point
    if not CPUS.admit(cpus):
        return "cpus_per_gpu", f"is {cpus:g}", f"give {CPUS}"
    if not (RATE.admit(rate) and rate > 0):
        return "steps_per_s", f"is {rate:g}", f"give {RATE.least:g} to {RATE.most:g}, or leave the line out"
    if cpus == before[0]:
        return "cpus_per_gpu", f"{cpus:g} is given twice", "keep one of them"
    if cpus < before[0]:
        return "cpus_per_gpu", f"{cpus:g} comes after {before[0]:g}", "sort the points by CPUs"
    if rate < before[1]:
        message = f"is {rate:g}, less than the {before[1]:g} with {before[0]:g} CPUs"
        return "steps_per_s", message, "more CPUs make no job slower: correct it, or leave the line out"
    return None
