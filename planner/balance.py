"""Cuts of a chain of layers into stages whose slowest is fastest, among those whose stages all fit into memory.

The chain is cut from its end: what a stage keeps for microbatches in flight depends on the number of stages behind it.
So the cuts of the last layers into few stages serve all larger numbers of stages, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.graph import Floats, Ints


class Cuts:
    """The best cut of a chain for each number of stages: the one whose greatest cost of a stage is least."""

    def __init__(self, cost_of: Callable[[int], Floats]) -> None:
        """`cost_of(behind)`: [i, j] the cost of a stage of layers i to j - 1, with so many stages behind it.

        Impossible stages, and those without layers, cost infinity.
        """
        self._cost_of = cost_of
        # By number of stages: [i] the greatest cost in the best cut of the layers from i on, and its second border.
        self._greatest: list[Floats] = []
        self._second: list[Ints] = []

    def borders(self, stages: int) -> Ints | None:
        """Return the first layer of each stage, and the end; None if every cut has an impossible stage."""
        while len(self._greatest) < stages:
            self._add_stage()
        if not np.isfinite(self._greatest[stages - 1][0]):
            return None
        borders = [0]
        for second in reversed(self._second[:stages]):
            borders.append(int(second[borders[-1]]))
        return np.array(borders)

    def _add_stage(self) -> None:
        behind = len(self._greatest)
        cost = self._cost_of(behind)
        rest = self._greatest[-1] if behind else _only_at_end(len(cost))
        greatest = np.maximum(cost, rest)
        second = greatest.argmin(axis=1)
        self._second.append(second)
        self._greatest.append(greatest[np.arange(len(second)), second])


def _only_at_end(borders: int) -> Floats:
    rest = np.full(borders, np.inf)
    rest[-1] = 0.0
    return rest


def sums(values: Floats) -> Floats:
    """Return [i, j] the sum over layers i to j - 1."""
    until = np.concatenate([[0.0], np.cumsum(values)])
    total: Floats = until[None, :] - until[:, None]
    return total


def greatest(values: Floats) -> Floats:
    """Return [i, j] the greatest value of layers i to j - 1; 0 if there are none."""
    count = len(values)
    last = np.zeros((count + 1, count + 1))
    last[:-1, 1:] = np.triu(np.broadcast_to(values, (count, count)))
    return np.maximum.accumulate(last, axis=1)
