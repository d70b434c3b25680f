"""How far a path of demands goes, told by prices alone.

Without pairs, jobs meet only in the prices of GPUs. At given prices each job has its cheapest way to have what
it demands (a mix of at most two of its columns), and the sum over jobs says whether a cluster worth so much can
pay for all of it. The level at which it can no more, at the least favourable prices, is the answer. There are
as many prices as worker types, so a few cutting planes find them: each evaluation is a few passes over arrays.

What comes out is a level close to the right one, to begin an exact search from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, linprog

from policies.problem import Floats, Ints, Problem

CLOSE = 1e-6  # of the bill
PAID = 1e-9  # what is over by less counts as paid
MOST_PLANES = 60
MOST_COLUMNS = 8  # per job: the cheapest mix is looked for among all pairs of them


def level_by_prices(problem: Problem, usable: Ints, demand: Callable[[float], Floats], top: float) -> float:
    """About the greatest s in (0, top] at which demand(s) can be met; `top` where this is not the way to find out."""
    market = _Market.of(problem, usable)
    if market is None:
        return top
    kinds = np.flatnonzero(problem.capacity > 0)
    capacity = problem.capacity[kinds]
    prices = np.full(len(kinds), 1.0 / capacity.sum())  # of all GPUs together: 1
    level = top
    planes: list[Floats] = []
    for _ in range(MOST_PLANES):
        bill, used = market.cheapest(kinds, prices, demand(level))
        if bill > 1.0 + PAID:

            def excess(s: float, at: Floats = prices) -> float:
                return market.cheapest(kinds, at, demand(s))[0] - 1.0

            try:
                level = float(brentq(excess, 0.0, level, rtol=1e-9))
            except (ValueError, RuntimeError):  # rates too far apart for a bill; a guess need not be good
                return level
            bill, used = market.cheapest(kinds, prices, demand(level))
        planes.append(used - capacity)
        # The prices at which what is known of the jobs' choices would be the hardest to pay for.
        rows = np.column_stack([-np.array(planes), np.ones(len(planes))])
        found = linprog(
            np.append(np.zeros(len(kinds)), -1.0),
            A_ub=rows,
            b_ub=np.zeros(len(planes)),
            A_eq=np.append(capacity, 0.0)[None, :],
            b_eq=[1.0],
            bounds=[(0, None)] * len(kinds) + [(None, None)],
        )
        if found.x is None or found.x[-1] < CLOSE:
            return level
        prices = found.x[:-1]
    return level


class _Market:
    """Each job's columns side by side: rate and GPUs per member, by plane."""

    def __init__(self, kind: Ints, gpus: Floats, rate: Floats, count: Floats) -> None:
        self.kind, self.gpus, self.rate, self.count = kind, gpus, rate, count

    @classmethod
    def of(cls, problem: Problem, usable: Ints) -> _Market | None:
        """None when jobs have too many columns to try all mixes."""
        columns = problem.columns.take(usable)
        n = len(problem.jobs)
        size = np.bincount(columns.first, minlength=n)
        c = int(size.max(initial=0))
        if c > MOST_COLUMNS or columns.is_pair.any():
            return None
        order = np.argsort(columns.first, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        kind, gpus, rate = np.zeros((c, n), dtype=np.int64), np.zeros((c, n)), np.zeros((c, n))
        kind[rank, columns.first] = columns.worker_type
        gpus[rank, columns.first] = columns.gpus
        rate[rank, columns.first] = columns.first_rate
        return cls(kind, gpus, rate, problem.jobs.count.astype(float))

    def cheapest(self, kinds: Ints, prices: Floats, demand: Floats) -> tuple[float, Floats]:
        """The bill for what all jobs demand, and the GPUs of each type that it pays for."""
        want = demand / self.count
        by_type = np.zeros(int(self.kind.max(initial=0)) + 1)
        by_type[kinds[kinds < len(by_type)]] = prices[kinds < len(by_type)]
        cost = by_type[self.kind] * self.gpus
        c, n = self.rate.shape
        best = np.full(n, np.inf)
        low, high, part = np.full(n, -1), np.zeros(n, dtype=np.int64), np.zeros(n)
        for b in range(c):  # a mix of a slower (or nothing, -1) and a faster column
            fast, dear = self.rate[b], cost[b]
            for a in range(-1, c):
                slow, cheap = (self.rate[a], cost[a]) if a >= 0 else (0.0, 0.0)
                if a == b:
                    continue
                with np.errstate(divide="ignore", invalid="ignore"):
                    share = (want - slow) / (fast - slow)
                share = np.where((share >= 0) & (share <= 1.0 + 1e-12) & (fast > slow), share, np.nan)
                bill = cheap + share * (dear - cheap)
                better = bill < best
                best = np.where(better, bill, best)
                low, high, part = (
                    np.where(better, a, low),
                    np.where(better, b, high),
                    np.where(better, share, part),
                )
        rows = np.arange(n)
        used = np.zeros(len(by_type))
        np.add.at(used, self.kind[high, rows], self.count * part * self.gpus[high, rows])
        mixed = np.flatnonzero(low >= 0)
        slow_gpus = self.gpus[low[mixed], mixed]
        np.add.at(used, self.kind[low[mixed], mixed], self.count[mixed] * (1.0 - part[mixed]) * slow_gpus)
        full = np.zeros(max(len(by_type), int(kinds.max(initial=0)) + 1))
        full[: len(used)] = used
        return float((self.count * best).sum()), full[kinds]
