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

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from policies.engine.prices import level_by_prices
from policies.errors import SolverFailure
from policies.problem import Bools, Floats, Ints, Jobs
from policies.program import MET, Point, Program

CUTS_MAX = 100
# Levels whose relative difference is below this are equal.
SAME_LEVEL = 1e-9
# A cut that lowers the level by less than this fraction is as tight as arithmetic allows.
ULP = 1e-13
# A stuck job is held this fraction below its height, so that rounding does not block the next stage.
MARGIN = 1e-9
# A column that costs less than this fraction of the mean price of its GPUs is free.
FREE = 1e-5


def furthest(program: Program, demand: Callable[[float], Floats], top: float) -> tuple[float, Point]:
    """Return the greatest s in (0, top] at which demand(s) can be met, and the point at s with its prices."""
    highest = top
    s = level_by_prices(program.problem, program.usable, demand, top)
    for _ in range(CUTS_MAX):
        point = program.raise_all(demand(s))
        if not point.optimal:
            raise SolverFailure("a cut along a path of demands stopped before its optimum")
        highest = min(highest, _crossing(program, point, demand, highest))
        met = point.value >= 1.0 - MET
        # If the demand is not met, the search ends when the cut is as tight as arithmetic allows.
        if highest <= s * (1.0 + SAME_LEVEL) if met else highest >= s * (1.0 - ULP):
            return s, point
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


class Share(Protocol):
    """A node of the tree that divides an amount among jobs. `v` holds the height of each job, by row."""

    @property
    def room(self) -> float:
        """The amount at which every job below is at its cap."""

    def pour(self, amount: float, v: Floats) -> None:
        """Divide an amount among the nodes and jobs below, writing heights into v."""


@dataclass(slots=True)
class Fair(ABC):
    """Members rise together, each at the rate of its weight, and stop at their caps."""

    weight: Floats
    cap: Floats
    count: Floats
    # The level at which each member stops, in ascending order, and the amount in all members at that level.
    _level: Floats = field(init=False)
    _amount: Floats = field(init=False)
    # How fast the amount grows with the level, in the segment that ends at each level.
    _slope: Floats = field(init=False)

    def __post_init__(self) -> None:
        stop = self.cap / self.weight
        order = np.argsort(stop, kind="stable")
        full = np.cumsum((self.count * self.cap)[order])
        rising = (self.count * self.weight)[order]
        above = np.append(np.cumsum(rising[::-1])[::-1][1:], 0.0)
        self._level = stop[order]
        self._amount = full + above * self._level
        self._slope = above + rising

    @property
    def top(self) -> float:
        """The level at which the last member stops."""
        return float(self._level[-1])

    @property
    def room(self) -> float:
        """See Share."""
        return float(self._amount[-1])

    def pour(self, amount: float, v: Floats) -> None:
        """See Share."""
        k = int(np.searchsorted(self._amount, amount))
        if k >= len(self._amount):
            self.rise(self.top, v)
        else:
            self.rise(max(0.0, float(self._level[k] - (self._amount[k] - amount) / self._slope[k])), v)

    def heights(self, level: float) -> Floats:
        """Return the amount in each member at this level."""
        return np.minimum(self.cap, self.weight * level)

    @abstractmethod
    def rise(self, level: float, v: Floats) -> None:
        """Raise the level to this value, and write the heights of jobs into v."""


@dataclass(slots=True)
class FairJobs(Fair):
    """A tenant of policy `fairness`: jobs by weight."""

    rows: Ints = field(kw_only=True)

    def rise(self, level: float, v: Floats) -> None:
        """See Fair."""
        v[self.rows] = self.heights(level)


def fair_jobs(jobs: Jobs) -> Callable[[Floats], FairJobs]:
    """Return the tree of all jobs without tenants, for `fill`."""

    def tree(cap: Floats) -> FairJobs:
        return FairJobs(jobs.weight, cap, jobs.count.astype(float), rows=np.arange(len(jobs)))

    return tree


@dataclass(slots=True)
class FairTenants(Fair):
    """An inner node: tenants by weight."""

    children: Sequence[Share] = field(kw_only=True)

    def rise(self, level: float, v: Floats) -> None:
        """See Fair."""
        for child, amount in zip(self.children, self.heights(level).tolist(), strict=True):
            child.pour(amount, v)


@dataclass(slots=True)
class QueuedJobs:
    """A tenant of policy `fifo`: the earliest job rises to its cap, then the next. Rows are in order of arrival."""

    rows: Ints
    cap: Floats
    count: Floats

    @property
    def room(self) -> float:
        """See Share."""
        return float((self.count * self.cap).sum())

    def pour(self, amount: float, v: Floats) -> None:
        """See Share."""
        before = np.cumsum(self.count * self.cap) - self.count * self.cap
        v[self.rows] = np.clip((amount - before) / self.count, 0.0, self.cap)


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
    for _ in range(n + 1):
        root = tree(cap)

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
        reach = _free_reach(program, point) / unit
        stuck = (reach <= v * (1.0 + MET)) | (cap <= v * (1.0 + MET)) | _has_price(program, point, v * unit)
        if stuck.all():
            return _fill_result(program, v, unit, first_stop, replace(point, optimal=optimal))
        if np.all(stuck <= done):
            # Rounding hides which job is stuck: take the job whose rate costs most.
            stuck[np.argmax(np.where(done, 0.0, point.worth * program.best_rate))] = True
        can_be_met = min(1.0, point.value) - 2.0 * MARGIN
        cap = np.where(stuck, v * can_be_met, np.minimum(cap, np.maximum(reach, v)))
        done = stuck
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


def _free_reach(program: Program, point: Point) -> Floats:
    """Return each job's best rate on columns that are free at these prices. The job can still rise to this rate."""
    problem, usable = program.problem, program.usable
    columns = problem.columns.take(usable)
    free_cost = FREE * columns.gpus * program.bound(point) / problem.capacity.sum()
    gpus = program.gpu_cost(point)
    reach = np.zeros(len(program.count))
    for job, partner, rate, partner_rate in (
        (columns.first, columns.second, columns.first_rate, columns.second_rate),
        (columns.second, columns.first, columns.second_rate, columns.first_rate),
    ):
        # A pair also costs the rent of its partner's time, less the worth of its partner's rate.
        partner_cost = np.where(
            columns.is_pair, point.rent[partner] - partner_rate * point.worth[partner], 0.0
        )
        free = (job >= 0) & (gpus + partner_cost <= free_cost)
        np.maximum.at(reach, job[free], rate[free])
    return reach


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
