"""Filling: the search for the greatest level to which all jobs can rise together.

A *path* gives the rate that each job demands when the common level is s. As s grows, no rate falls, and each stops at
the job's cap. A job's *height* is its rate in a unit that the policy chooses.

The furthest feasible point of a path is found by cuts. The solver's prices at an infeasible point prove that
`worth @ E <= bound` for all feasible rates E, and the next point is the crossing of the path and this bound. A handful
of linear programs are enough for any path.

A job that stops at its cap does not end a stage, since the path contains its cap; only scarce GPUs end a stage. So
there are about as many stages as worker types, not as many as jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from policies.engine.apart import CUTS_MAX, MARGIN, SAME_LEVEL, ULP, Apart, free_reach
from policies.engine.prices import level_by_prices
from policies.engine.sharing import Fair
from policies.errors import SolverFailure
from policies.problem import Bools, Floats
from policies.program import MET, Point, Program


def furthest(program: Program, demand: Callable[[float], Floats], top: float) -> tuple[float, Point]:
    """Return the greatest s in (0, top] at which demand(s) can be met, and the point at s with its prices."""
    highest, proof = top, None
    s = level_by_prices(program.problem, program.usable, demand, top)
    for _ in range(CUTS_MAX):
        point = program.raise_all(demand(s))
        if not point.optimal:
            raise SolverFailure("a cut along a path of demands stopped before its optimum")
        point = program.proven(point)
        crossing = _crossing(program, point, demand, highest)
        if crossing < highest or proof is None:
            highest, proof = crossing, point
        met = point.value >= 1.0 - MET
        # If the demand is not met, the search ends when the cut is as tight as arithmetic allows.
        if highest <= s * (1.0 + SAME_LEVEL) if met else highest >= s * (1.0 - ULP):
            return s, point.with_prices_of(proof)
        s = highest
    raise SolverFailure("the search along a path of demands did not settle")


def _crossing(program: Program, point: Point, demand: Callable[[float], Floats], highest: float) -> float:
    """Return the level at which the path crosses the bound that these prices prove."""
    bound = program.bound(point)

    def excess(s: float) -> float:
        return float(np.einsum("i,i->", point.worth, demand(s))) - bound

    if excess(highest) <= MARGIN * abs(bound):
        return highest
    from scipy.optimize import brentq

    try:
        return float(brentq(excess, 0.0, highest, xtol=1e-300, rtol=1e-14))
    except (ValueError, RuntimeError) as error:
        raise SolverFailure(f"the path does not cross its bound: {error}") from None


@dataclass(frozen=True, slots=True)
class FillResult:
    """The final heights of all jobs, `v`, and the shares that give them.

    `scarce_level` is the first level at which scarce GPUs stopped a job, or infinite; `scarce_price` holds the prices
    at that level.
    """

    v: Floats
    scarce_level: float
    scarce_price: Floats
    shares: Floats
    optimal: bool

    def point(self, value: float) -> Point:
        """Return these shares as a point whose value is the height of the lowest job or tenant."""
        close = 1e-6 * self.scarce_level if np.isfinite(self.scarce_level) else 0.0
        if value < self.scarce_level - close:
            # The lowest job has its best possible rate.
            price = np.zeros_like(self.scarce_price)
        elif value <= self.scarce_level + close:
            price = self.scarce_price
        else:
            # The lowest job was stopped at a later level, whose prices are not recorded.
            price = np.full_like(self.scarce_price, np.nan)
        empty = np.zeros(0)
        return Point(self.shares, value, price, empty, empty, self.optimal)


def fill(
    program: Program,
    tree: Callable[[Floats], Fair],
    unit: Floats,
    is_last: Callable[[Point], bool] = lambda _: False,
) -> FillResult:
    """Raise the level through the tree until no job can rise. A job's height is its rate divided by its `unit`.

    `is_last` decides by the prices of the point at which a job is stopped whether this level is the last one.
    """
    n = len(program.count)
    cap = program.best_rate / unit
    # The first level at which scarce GPUs stopped a job, and the prices there.
    first_stop: tuple[float, Floats] | None = None
    optimal = True
    done = np.zeros(n, dtype=bool)
    # From the first stage that a quota ends, jobs stop where their quotas alone would stop them.
    apart: Apart | None = None
    own_cap = cap
    for _ in range(n + 1):
        root = tree(own_cap)

        def heights(level: float, root: Fair = root) -> Floats:
            v = np.zeros(n)
            root.rise(level, v)
            return v

        def demand(level: float) -> Floats:
            return np.asarray(heights(level) * program.count * unit)

        s, point = furthest(program, demand, root.top)
        v = heights(s)
        optimal &= point.optimal
        scarce = s < root.top
        if scarce and first_stop is None:
            first_stop = (s, point.price / _slope(point.worth, demand, s))
        if not scarce or not point.optimal or is_last(point):
            return _fill_result(program, v, unit, first_stop, replace(point, optimal=optimal))
        reach = free_reach(program, point, program.bound(point) / program.problem.capacity.sum()) / unit
        stuck = (reach <= v * (1.0 + MET)) | (cap <= v * (1.0 + MET)) | _has_price(program, point, v * unit)
        if stuck.all():
            return _fill_result(program, v, unit, first_stop, replace(point, optimal=optimal))
        if np.all(stuck <= done):
            # Rounding hides which job is stuck: take the job whose rate costs most.
            stuck[np.argmax(np.where(done, 0.0, point.worth * program.best_rate))] = True
        can_be_met = min(1.0, point.value) - 2.0 * MARGIN
        cap = np.where(stuck, v * can_be_met, np.minimum(cap, np.maximum(reach, v)))
        done = stuck
        if apart:
            own_cap = apart.caps(cap, before=own_cap)
        elif point.toll.any():
            apart = Apart(program, tree, unit)
            own_cap = apart.caps(cap)
        else:
            own_cap = cap
    raise SolverFailure("levels did not settle")


def _fill_result(
    program: Program, v: Floats, unit: Floats, first_stop: tuple[float, Floats] | None, point: Point
) -> FillResult:
    """Return the result; with pairs, first distribute the GPU time that rounding left over."""
    if program.problem.columns.is_pair.any() and point.optimal:
        floor = v * unit * program.count * min(1.0, point.value)
        point = program.improve(point, 1.0 / unit, floor)
    level, price = first_stop or (np.inf, np.zeros(len(program.problem.capacity)))
    return FillResult(v, level, price, point.shares, point.optimal)


def _slope(worth: Floats, demand: Callable[[float], Floats], s: float) -> float:
    """Return the derivative of the demand's worth just below level s; infinite if the worth does not grow."""
    step = s * 1e-6
    rise = float(worth @ (demand(s) - demand(s - step))) / step
    return rise if rise > 0 else np.inf


def _has_price(program: Program, point: Point, rate: Floats) -> Bools:
    """Return a mask of the jobs whose rate has a price of its own; all False without pairs.

    A job alone on its GPUs is stuck if and only if no free column is faster. A job in a pair may be held back by its
    partner, and then only the price of its rate shows that it is stuck.
    """
    if not program.problem.columns.is_pair.any():
        return np.zeros(len(rate), dtype=bool)
    room = (program.effective(point.shares) / program.count - rate) / program.best_rate
    price = point.worth * program.best_rate * program.count.sum()
    has_price = price > np.maximum(room, MET)
    if not has_price.any():
        has_price[np.argmax(price)] = True
    return np.asarray(has_price)
