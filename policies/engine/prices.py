"""Estimate by prices alone how far a path of demands reaches: a starting level for the exact search.

Without pairs, jobs interact only through the prices of GPUs. At given prices, each job has a cheapest way to get the
rate that it demands: a mix of at most two of its columns. The *bill* is the cost of these mixes for all jobs together.
If it exceeds the worth of all GPUs at some prices, the demand cannot be met. So the estimate is the greatest level at
which no prices make the bill exceed the worth. There are only as many prices as worker types, so a few cutting planes
find the least favourable prices; each takes a few passes over arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from policies.engine.solvers import LinearProgram, solve_lp
from policies.engine.sparse import dense
from policies.errors import SolverFailure
from policies.problem import Floats, Ints, Problem

# The search for prices ends when other prices can raise the bill by at most this fraction.
CLOSE = 1e-6
# A bill that exceeds the worth of the GPUs by less than this fraction counts as paid.
PAID = 1e-9
PLANES_MAX = 60
# The greatest number of columns of a job: its cheapest mix is searched among all pairs of columns.
COLUMNS_MAX = 8
# The cost of the slower column of each mix, and the extra cost of the faster one.
Cost = tuple[Floats, Floats]


def level_by_prices(problem: Problem, usable: Ints, demand: Callable[[float], Floats], top: float) -> float:
    """Estimate the greatest s in (0, top] at which demand(s) can be met; return `top` if there is no `_Market`."""
    market = _Market.of(problem, usable)
    return top if market is None else deque(_levels(market, problem, demand, top), maxlen=1).pop()


def seems_affordable(problem: Problem, usable: Ints, demand: Floats) -> bool:
    """Return whether this demand can probably be met, judging by prices; False if there is no `_Market`."""
    market = _Market.of(problem, usable)
    if market is None:
        return False
    return all(level >= 1.0 for level in _levels(market, problem, lambda s: s * demand, 1.0))


def _levels(
    market: _Market, problem: Problem, demand: Callable[[float], Floats], top: float
) -> Iterator[float]:
    """Yield decreasing levels, from the top down to the answer, as the prices get less favourable."""
    from scipy.optimize import brentq

    count = problem.jobs.count
    # All GPUs together are worth 1.
    prices = (problem.capacity > 0) / problem.capacity.sum()
    level = top
    # For each cutting plane, how many more GPUs of each type the jobs pay for than there are.
    planes: list[Floats] = []
    for _ in range(PLANES_MAX):
        cost = market.cost(prices)
        if market.bill(cost, demand(level) / count) > 1.0 + PAID:

            def excess(s: float, cost: Cost = cost) -> float:
                return market.bill(cost, demand(s) / count) - 1.0

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
    """Return the prices at which the mixes chosen so far are hardest to pay for; None if all can be paid."""
    cost = np.append(np.zeros(len(capacity)), -1.0)
    rows = np.vstack([np.append(capacity, 0.0), np.column_stack([-planes, np.ones(len(planes))])])
    try:
        answer = solve_lp(LinearProgram(cost, dense(rows), np.append(1.0, np.zeros(len(planes)))))
    except SolverFailure:
        return None
    prices = np.where(capacity > 0, answer.x[:-1], 0.0)
    return None if answer.x[-1] < CLOSE else prices / (prices @ capacity)


class _Market:
    """The ways in which each job can get a rate: mixes of a slower column (or no column) and a faster one."""

    def __init__(self, kind: Ints, gpus: Floats, rate: Floats, count: Floats, types: int) -> None:
        """`kind`, `gpus` and `rate` are [way × job]. The first way stands for no column."""
        self.kind, self.gpus, self.count, self.types = kind, gpus, count, types
        ways = range(len(rate))
        self.fast, self.slow = np.array([(b, a) for b in ways[1:] for a in ways if a != b]).T
        self.slow_rate = rate[self.slow]
        gain = rate[self.fast] - self.slow_rate
        with np.errstate(over="ignore"):
            # The fraction of time by which the faster column grows per unit of rate; NaN if it is not faster.
            self.per_rate = np.divide(1.0, gain, out=np.full(gain.shape, np.nan), where=gain > 0)

    @classmethod
    def of(cls, problem: Problem, usable: Ints) -> _Market | None:
        """Return the market of a problem; None with pairs, or with too many columns to try all mixes."""
        columns = problem.columns.take(usable)
        n = len(problem.jobs)
        size = np.bincount(columns.first, minlength=n)
        c = int(size.max(initial=0))
        if not 0 < c <= COLUMNS_MAX or columns.is_pair.any():
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

    def bill(self, cost: Cost, demand: Floats) -> float:
        """Return what all jobs pay together if each gets its rate in the cheapest way."""
        return float(np.einsum("i,i->", self.count, self._mixes(cost, demand)[1].min(axis=0)))

    def used(self, cost: Cost, demand: Floats) -> Floats:
        """Return the number of GPUs of each type for which the jobs pay."""
        fraction, bills = self._mixes(cost, demand)
        best, job = bills.argmin(axis=0), np.arange(len(demand))
        fast, slow, fraction = self.fast[best], self.slow[best], fraction[best, job]
        kinds = np.concatenate([self.kind[fast, job], self.kind[slow, job]])
        gpus = np.concatenate([fraction * self.gpus[fast, job], (1.0 - fraction) * self.gpus[slow, job]])
        return np.asarray(np.bincount(kinds, gpus * np.tile(self.count, 2), self.types), dtype=float)

    def _mixes(self, cost: Cost, demand: Floats) -> tuple[Floats, Floats]:
        """Return the fraction of the faster column in each mix, and the cost of the mix, infinite if impossible."""
        slow, more = cost
        with np.errstate(over="ignore", invalid="ignore"):
            fraction = (demand - self.slow_rate) * self.per_rate
            bill = slow + fraction * more
        return fraction, np.where((fraction >= 0) & (fraction <= 1.0 + 1e-12), bill, np.inf)
