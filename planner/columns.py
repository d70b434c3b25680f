"""Plans as columns of an allocation problem, without those that no allocation can need.

A job that runs a part of the time on few GPUs and a part on many does, on average, what a plan between the two would do
with the same GPU time. So a plan below the line between two others, or between another and none, is never needed. An
exception are policies that judge each column alone, as `min_cost` does with dear ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from planner.search import Priced

# Plans so close below the line are kept: they spare the rounds changes of width.
KEPT_BELOW = 0.03


class Column(NamedTuple):
    """One way to run a job: the fields of a variant in a problem file."""

    worker_type: str
    gpus: int
    # Updates of the weights per second.
    rate: float
    label: str


def columns(worker_type: str, plans: Iterable[Priced], kept_below: float = KEPT_BELOW) -> list[Column]:
    """Return the columns for the fastest plans of one worker type, one per number of GPUs, that can be needed."""
    ordered = sorted(plans, key=lambda priced: priced.plan.gpus)
    rates = [1 / priced.cost.step_s for priced in ordered]
    widths = [priced.plan.gpus for priced in ordered]
    return [
        Column(worker_type, priced.plan.gpus, rate, priced.plan.label)
        for priced, rate, line in zip(ordered, rates, hull(widths, rates), strict=True)
        if rate >= (1 - kept_below) * line
    ]


def hull(widths: Sequence[int], rates: Sequence[float]) -> list[float]:
    """Return, for each width, the greatest rate that a mix of these widths and of none reaches within its GPU time.

    The widths are in increasing order.
    """
    corners = [(0, 0.0)]
    for width, greatest in zip(widths, accumulate(rates, max), strict=True):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], (width, greatest)):
            corners.pop()
        corners.append((width, greatest))
    lines = pairwise(corners)
    reached: list[float] = []
    left, right = (0, 0.0), (0, 0.0)
    for width in widths:
        while right[0] < width:
            left, right = next(lines)
        reached.append(left[1] + _slope(left, right) * (width - left[0]))
    return reached


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
