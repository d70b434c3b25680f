"""Estimate by prices alone how far a path of demands reaches: a starting level for the exact search.

Without pairs, jobs interact only through the prices of GPUs. At given prices each job has a cheapest way to get the
rate it demands (a mix of at most two of its columns), and the sum over jobs shows whether GPUs of that total worth can
pay for all of it. The level at which they no longer can, at the least favourable prices, is the answer. There are as
many prices as worker types, so a few cutting planes find them: each evaluation is a few passes over arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from scipy.optimize import brentq

from policies.engine.solvers import LinearProgram, solve_lp
from policies.engine.sparse import dense
from policies.errors import SolverFailure
from policies.problem import Floats, Ints, Problem

# The search for prices ends when the bill could rise by no more than this fraction.
CLOSE = 1e-6
# A bill that exceeds the worth of the GPUs by less than this fraction counts as paid.
PAID = 1e-9
MOST_PLANES = 60
# The most columns of a job: its cheapest mix is searched among all pairs of them.
MOST_COLUMNS = 8
# The cost of the slower column of each mix, and the extra cost of the faster one.
Cost = tuple[Floats, Floats]


def level_by_prices(problem: Problem, usable: Ints, demand: Callable[[float], Floats], top: float) -> float:
    """Estimate the greatest s in (0, top] at which demand(s) can be met; return `top` if prices cannot tell."""
    market = _Market.of(problem, usable)
    return top if market is None else deque(_levels(market, problem, demand, top), maxlen=1).pop()


def seems_affordable(problem: Problem, usable: Ints, demand: Floats) -> bool:
    """Return whether, by prices, all of this can probably be met; False if prices cannot tell."""
    market = _Market.of(problem, usable)
    if market is None:
        return False
    return all(level >= 1.0 for level in _levels(market, problem, lambda part: part * demand, 1.0))


def _levels(
    market: _Market, problem: Problem, demand: Callable[[float], Floats], top: float
) -> Iterator[float]:
    """Yield decreasing levels, from the top down to the answer, as the prices get less favourable."""
    count = problem.jobs.count
    # All GPUs together are worth 1.
    prices = (problem.capacity > 0) / problem.capacity.sum()
    level = top
    planes: list[Floats] = []
    for _ in range(MOST_PLANES):
        cost = market.cost(prices)
        if market.bill(cost, demand(level) / count) > 1.0 + PAID:

            def excess(s: float, at: Cost = cost) -> float:
                return market.bill(at, demand(s) / count) - 1.0

            try:
                level = float(brentq(excess, 0.0, level, rtol=1e-9))
            except (ValueError, RuntimeError):
                # The rates differ too much to be added; the estimate may be poor.
                yield level
                return
        yield level
        planes.append(market.used(cost, demand(level) / count) - problem.capacity)
        hardest = _hardest(np.array(planes), problem.capacity)
        if hardest is None:
            return
        prices = hardest


def _hardest(planes: Floats, capacity: Floats) -> Floats | None:
    """Return the prices at which the jobs' choices so far are hardest to pay for; None if they can be paid."""
    cost = np.append(np.zeros(len(capacity)), -1.0)
    rows = np.vstack([np.append(capacity, 0.0), np.column_stack([-planes, np.ones(len(planes))])])
    try:
        answer = solve_lp(LinearProgram(cost, dense(rows), np.append(1.0, np.zeros(len(planes)))))
    except SolverFailure:
        return None
    prices = np.where(capacity > 0, answer.x[:-1], 0.0)
    return None if answer.x[-1] < CLOSE else prices / (prices @ capacity)


class _Market:
    """All ways of each job to get a rate: mixes of a slower column (or nothing) and a faster one."""

    def __init__(self, kind: Ints, gpus: Floats, rate: Floats, count: Floats, types: int) -> None:
        """Take type, GPUs and rate per member of each plane, the first of which is nothing."""
        self.kind, self.gpus, self.count, self.types = kind, gpus, count, types
        planes = range(len(rate))
        self.fast, self.slow = np.array([(b, a) for b in planes[1:] for a in planes if a != b]).T
        self.slow_rate = rate[self.slow]
        gain = rate[self.fast] - self.slow_rate
        with np.errstate(over="ignore"):
            self.per_rate = np.divide(1.0, gain, out=np.full(gain.shape, np.nan), where=gain > 0)

    @classmethod
    def of(cls, problem: Problem, usable: Ints) -> _Market | None:
        """Return the market of a problem; None if jobs have too many columns to try all mixes."""
        columns = problem.columns.take(usable)
        n = len(problem.jobs)
        size = np.bincount(columns.first, minlength=n)
        c = int(size.max(initial=0))
        if not 0 < c <= MOST_COLUMNS or columns.is_pair.any():
            return None
        order = np.argsort(columns.first, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(1, len(order) + 1) - np.repeat(np.cumsum(size) - size, size)
        kind, gpus, rate = np.zeros((c + 1, n), dtype=np.int64), np.zeros((c + 1, n)), np.zeros((c + 1, n))
        kind[rank, columns.first] = columns.worker_type
        gpus[rank, columns.first] = columns.gpus
        rate[rank, columns.first] = columns.first_rate
        return cls(kind, gpus, rate, problem.jobs.count.astype(float), len(problem.capacity))

    def cost(self, prices: Floats) -> Cost:
        """Return the cost of each mix at these GPU prices."""
        cost = prices[self.kind] * self.gpus
        return cost[self.slow], cost[self.fast] - cost[self.slow]

    def bill(self, cost: Cost, want: Floats) -> float:
        """Return what all jobs pay together if each gets its rate in the cheapest way."""
        return float(np.einsum("i,i->", self.count, self._mixes(cost, want)[1].min(axis=0)))

    def used(self, cost: Cost, want: Floats) -> Floats:
        """Return how many GPUs of each type they pay for."""
        part, bills = self._mixes(cost, want)
        best, job = bills.argmin(axis=0), np.arange(len(want))
        fast, slow, part = self.fast[best], self.slow[best], part[best, job]
        kinds = np.concatenate([self.kind[fast, job], self.kind[slow, job]])
        held = np.concatenate([part * self.gpus[fast, job], (1.0 - part) * self.gpus[slow, job]])
        return np.asarray(np.bincount(kinds, held * np.tile(self.count, 2), self.types), dtype=float)

    def _mixes(self, cost: Cost, want: Floats) -> tuple[Floats, Floats]:
        """Return the fraction of the faster column in each mix, and the bill; infinite if a mix is impossible."""
        slow, more = cost
        with np.errstate(over="ignore", invalid="ignore"):
            part = (want - self.slow_rate) * self.per_rate
            bill = slow + part * more
        return part, np.where((part >= 0) & (part <= 1.0 + 1e-12), bill, np.inf)
