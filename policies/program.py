"""The few words that every policy is written in: shares, capacity, rates, solve.

A `Program` knows what always holds (no job runs more than all the time, no type has more GPUs than it has)
and answers two questions about the effective rates E = rates @ shares:

    maximise(gain)     the shares with the greatest gain @ x, every E_m at least its floor
    raise_all(need)    the greatest level λ at which every E_m >= λ * need_m can be met

Both say what the limits are worth: `price` per GPU of a type, `worth` per unit of a job's rate, `rent` per
unit of a job's time. For any shares at all, worth @ E <= price @ capacity + rent @ count: that one
inequality is how the max-min policies find out who is stuck, and where.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from policies.errors import SolverFailure
from policies.problem import ALONE, Allocation, Bools, Floats, Ints, Problem
from policies.reference import isolated_rates
from policies.solvers import Answer, LinearProgram, solve_lp, solve_milp
from policies.sparse import Sparse, beside, column, diagonal, identity, row, stack, zeros

# A level that was reached is held a hair below itself, so that the next stage has room to move in.
SLACK = 1e-8
# Within this part of what was asked for, it was met.
MET = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Shares, what they are worth, and the prices that prove it."""

    shares: Floats
    value: float
    price: Floats
    worth: Floats
    rent: Floats
    optimal: bool = True


class Program:
    """What always holds, for one problem."""

    def __init__(self, problem: Problem, allowed: Bools | None = None) -> None:
        self.problem = problem
        self.count = problem.jobs.count.astype(float)
        usable = problem.columns.first_rate > 0
        if allowed is not None:
            usable &= allowed
        pair = problem.columns.is_pair
        usable &= ~pair | (problem.columns.second_rate > 0)
        usable &= problem.capacity[problem.columns.worker_type] > 0
        self.usable: Ints = np.flatnonzero(usable)
        self.rates: Sparse = problem.rates.columns(self.usable)
        self._standing = stack(problem.membership, problem.occupancy).columns(self.usable)
        self._standing_limit = np.concatenate([self.count, problem.capacity])
        alone = not problem.columns.is_pair[self.usable].any()
        self._block = problem.columns.first[self.usable] if alone else None
        best = self.rates.largest()
        # The rate of one member at its best: rows are measured in it, so that a step per hour and a
        # thousand steps per second look alike to a solver.
        self.best_rate: Floats = np.where(best > 0, best, 1.0)

    @cached_property
    def best_alone(self) -> Floats:
        """The rate of one member that has the whole cluster to itself (alone it also never runs as a pair)."""
        columns, solo = self.problem.columns, self.usable[~self.problem.columns.is_pair[self.usable]]
        best = np.zeros(len(self.count))
        np.maximum.at(best, columns.first[solo], columns.first_rate[solo])
        room = self.problem.capacity[columns.worker_type[solo]]
        for job in np.unique(columns.first[solo[columns.gpus[solo] > room]]).tolist():
            own = solo[
                columns.first[solo] == job
            ]  # wider than the type: it cannot even have all of its time there
            rows = stack(row(np.ones(len(own))), self.problem.occupancy.columns(own))
            limit = np.concatenate([[1.0], self.problem.capacity])
            best[job] = (
                columns.first_rate[own] @ solve_lp(LinearProgram(-columns.first_rate[own], rows, limit)).x
            )
        return np.where(best > 0, best, self.best_rate)

    @cached_property
    def isolated_rate(self) -> Floats:
        """I_m, per member."""
        return isolated_rates(self.problem)

    def standing(self, count: Floats) -> tuple[Sparse, Floats]:
        """What always holds, were there so many members of each row: rows and limits."""
        return self._standing, np.concatenate([count, self.problem.capacity])

    def effective(self, shares: Floats) -> Floats:
        """E_m, summed over the members of a row."""
        return self.problem.rates @ shares

    def per_rate(self, gain: Floats) -> Floats:
        """A gain per unit of each row's rate, as a gain per column."""
        return self.problem.rates.T @ gain

    def maximise(
        self, gain: Floats, *, floor: Floats | None = None, hold: tuple[Floats, float] | None = None
    ) -> Point:
        """max gain @ x; every E_m >= floor_m, and `hold`: a row of gains that must not fall below a value."""
        gain = gain[self.usable]
        rows, limits = [self._standing], [self._standing_limit]
        held: Ints = np.zeros(0, dtype=np.int64)
        if floor is not None:
            held = np.flatnonzero(floor > 0)
            size = (self.best_rate * self.count)[held]
            rows.append(self.rates.rows(held).scale_rows(-1.0 / size))
            limits.append(-floor[held] / size)
        if hold is not None:
            held_gain, least = hold[0][self.usable], hold[1]
            unit = max(abs(least), 1e-300)
            rows.append(row(-held_gain / unit))
            limits.append(np.array([-least / unit]))
        scale = float(np.abs(gain).max(initial=0.0)) or 1.0
        program = LinearProgram(-gain / scale, stack(*rows), np.concatenate(limits), self._block)
        answer = solve_lp(program)
        dual = answer.dual * scale
        worth = np.zeros(len(self.count))
        worth[held] = dual[len(self._standing_limit) :][: len(held)] / (self.best_rate * self.count)[held]
        point = self._point(answer, np.nan, dual, worth)
        return replace(point, value=float(gain @ point.shares[self.usable]))  # of what is really given

    def improve(self, point: Point, gain: Floats, floor: Floats) -> Point:
        """The second stage: of all shares that keep the floor, those with the greatest gain. Value and prices stay."""
        try:
            better = self.maximise(gain, floor=floor * (1.0 - SLACK))
        except SolverFailure:
            return replace(point, optimal=False)
        return replace(point, shares=better.shares, optimal=point.optimal and better.optimal)

    def raise_all(self, need: Floats) -> Point:
        """max λ: E_m >= λ * need_m for every row; `value` is λ, prices are per unit of λ."""
        n, k = len(self.count), self.usable.size
        size = self.best_rate * self.count
        wanted = need / size
        if not np.any(wanted > 0):
            raise SolverFailure("nothing is needed by any job")
        unit = 1.0 / float(wanted.max())  # no level above it is possible: the program's own λ lies in [0, 1]
        program = LinearProgram(
            cost=np.concatenate([np.zeros(k), [-1.0]]),
            rows=stack(
                beside(self._standing, zeros(len(self._standing_limit), 1)),
                beside(self.rates.scale_rows(-1.0 / size), column(wanted * unit)),
            ),
            limit=np.concatenate([self._standing_limit, np.zeros(n)]),
            block=self._blocks(np.array([ALONE])),
        )
        answer = solve_lp(program)
        level = float(answer.x[-1]) * unit
        answer = replace(answer, x=answer.x[:k])
        dual = answer.dual * unit
        return self._point(answer, level, dual, dual[len(self._standing_limit) :] / size)

    def least_shortfall(self, need: Floats) -> Floats:
        """Who must miss: s_m in [0, 1] with E_m >= (1 - s_m) * need_m and the least sum over all members."""
        late = np.flatnonzero(need > 0)
        program = self._shortfall(late, need[late])
        answer = solve_lp(program)
        short = np.zeros(len(self.count))
        short[late] = answer.x[self.usable.size :]
        return short

    def most_kept(self, need: Floats) -> tuple[Floats, bool]:
        """The same with s_m either 0 or 1: the most needs that can be met together, and whether that is proven."""
        late = np.flatnonzero(need > 0)
        program = self._shortfall(late, need[late])
        k = self.usable.size
        answer = solve_milp(program, np.arange(k, k + len(late)))
        short = np.zeros(len(self.count))
        short[late] = np.round(answer.x[k:])
        return short, answer.optimal

    def _shortfall(self, late: Ints, need: Floats) -> LinearProgram:
        k, size = self.usable.size, (self.best_rate * self.count)[late]
        return LinearProgram(
            cost=np.concatenate([np.zeros(k), self.count[late]]),
            rows=stack(
                beside(self._standing, zeros(len(self._standing_limit), len(late))),
                beside(self.rates.rows(late).scale_rows(-1.0 / size), diagonal(-need / size)),
                beside(zeros(len(late), k), identity(len(late))),
            ),
            limit=np.concatenate([self._standing_limit, -need / size, np.ones(len(late))]),
            block=self._blocks(late),
        )

    def allocation(self, policy: str, point: Point, **other: Any) -> Allocation:
        """A point as a policy's answer."""
        return Allocation(
            **{
                "policy": policy,
                "time_share": point.shares,
                "value": point.value,
                "price": point.price,
                "isolated_rate": self.isolated_rate,
                "backfill": np.ones(len(self.problem.columns), dtype=bool),
                "optimal": point.optimal,
                **other,
            }
        )

    def _blocks(self, further: Ints) -> Ints | None:
        """The job of each usable column, and of further columns behind them."""
        return None if self._block is None else np.concatenate([self._block, further])

    def _point(self, answer: Answer, value: float, dual: Floats, worth: Floats) -> Point:
        n, used = len(self.count), self._standing @ answer.x
        # No solver keeps its limits to the last bit: whoever has a hair too much of something gives it back.
        limit = self._standing_limit
        fits = np.divide(limit, used, out=np.ones(len(used)), where=used > limit)
        columns = self.problem.columns.take(self.usable)
        second = np.where(columns.is_pair, columns.second, columns.first)
        fit = np.minimum(np.minimum(fits[columns.first], fits[second]), fits[n + columns.worker_type])
        shares = np.zeros(len(self.problem.columns))
        shares[self.usable] = answer.x * fit
        return Point(
            shares=shares,
            value=value,
            price=dual[n : n + len(self.problem.capacity)],
            worth=worth,
            rent=dual[:n],
            optimal=answer.optimal,
        )
