"""Cuts of a chain of layers into stages whose greatest cost is least.

The chain is cut from its end: what a stage keeps for microbatches in flight depends on the number of stages behind it.
In the best cut, no stage costs much more than the mean or the largest layer. So only short spans of layers are
compared: those that cost no more than a limit. A cut that stays within its limit is the best of all; otherwise the
limit is raised.

Costs of spans are matrices: row i and column k stand for the layers i to i + k. Spans that would end after the last
layer are never used, whatever their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from planner.graph import Floats, Ints

# The first limit, beside an estimate of the greatest cost. A lower one often fails; a higher one compares more spans.
FIRST_LIMIT = 1.2
# Sums of the same numbers may differ by this part of themselves.
ROUNDING = 1e-9

# By number of stages behind, and limit: the costs of the spans, of as many columns as have spans within the limit.
SpanCosts = Callable[[int, float], Floats]


class Cut(NamedTuple):
    """The first layer of each stage, and the end; and the greatest cost of a stage, infinity if it is impossible."""

    borders: Ints
    greatest: float


def best_cut(costs: SpanCosts, layers: int, stages: int, estimate: float) -> Cut:
    """Return the cut whose greatest cost is least. The nearer that is to the estimate, the fewer spans are compared."""
    limit = FIRST_LIMIT * estimate
    while True:
        cut, is_complete = _cut(costs, layers, stages, limit)
        if cut.greatest <= limit or is_complete:
            return cut
        # The best cut costs no more than one that is known.
        limit = min(cut.greatest, 2 * limit) if limit > 0 else cut.greatest


def _cut(costs: SpanCosts, layers: int, stages: int, limit: float) -> tuple[Cut, bool]:
    """Return the best cut into spans of the columns within a limit, and whether these were all spans."""
    rows, is_complete = np.arange(layers), True
    # By the border after the first layer and all further ones: the greatest cost of the best cut from there to the end.
    # There is none from behind the end.
    rest = np.full(2 * layers, np.inf)
    rest[layers - 1] = 0.0
    windows = sliding_window_view(rest, layers)[:layers]
    chosen: list[Ints] = []
    for behind in range(stages):
        cost = costs(behind, limit)
        is_complete &= cost.shape[1] == layers
        greatest = np.maximum(cost, windows[:, : cost.shape[1]])
        chosen.append(greatest.argmin(axis=1))
        least = greatest[rows, chosen[-1]]
        rest[: layers - 1], rest[layers - 1] = least[1:], np.inf
    borders = [0]
    for columns in reversed(chosen):
        first = min(borders[-1], layers - 1)
        borders.append(first + int(columns[first]) + 1)
    return Cut(np.array(borders), float(least[0])), is_complete


def until(values: Floats) -> Floats:
    """Return the sums over the layers before each border."""
    return np.concatenate([[0.0], np.cumsum(values)])


def reach(sums: Floats, limit: float) -> int:
    """Return the number of columns, at least 1, that have spans with a sum within a limit; `sums` come from `until`."""
    rows = np.arange(len(sums) - 1)
    last = np.searchsorted(sums, sums[:-1] + limit * (1 + ROUNDING), side="right") - 1
    return max(1, int((last - rows).max()))


def spans(sums: Floats, columns: int) -> Floats:
    """Return the sum over each span."""
    total: Floats = ends(sums, columns, sums[-1]) - sums[:-1, None]
    return total


def ends(values: Floats, columns: int, beyond: float) -> Floats:
    """Return the value at the border where each span ends."""
    padded = np.concatenate([values[1:], np.full(columns - 1, beyond)])
    return sliding_window_view(padded, columns)


def greatest_of(values: Floats, columns: int) -> Floats:
    """Return the greatest value of the layers of each span."""
    padded = np.concatenate([values, np.full(columns - 1, 0.0)])
    return np.maximum.accumulate(sliding_window_view(padded, columns), axis=1)
