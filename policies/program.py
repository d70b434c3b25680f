"""The building blocks of every linear policy: shares, capacity, rates, solve.

A `Program` holds the rules of every answer (no job runs for more than all of the time, no type gives more GPUs than it
has, CPUs are enough, no jobs exceed a quota) and answers two questions about the effective rates E = rates @ shares:

    maximise(gain)     the shares with the greatest gain @ x, every E_m at least its floor
    raise_all(need)    the greatest level λ at which every E_m >= λ * need_m can be met

Both answers come with prices: `price` per GPU of a type and per CPU, `worth` per unit of a job's rate, `rent` per unit
of a job's time, `toll` per GPU under a quota. `Program.bound` is that for any shares, worth @ E <= price @ supply +
rent @ count + toll @ quotas. From this inequality the max-min policies derive which jobs are stuck, and at which level.
`raise_then_improve` asks both questions, and skips a question if the answer to the other already contains its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from policies.engine.cpus import supply
from policies.engine.prices import seems_affordable
from policies.engine.solvers import MANY_COLUMNS, Answer, LinearProgram, Start, solve_lp, solve_milp, try_lp
from policies.engine.sparse import Sparse, beside, column, diagonal, identity, row, stack, zeros
from policies.engine.widths import even_widths
from policies.errors import SolverFailure
from policies.problem import ALONE, Allocation, Bools, Floats, Ints, Problem
from policies.reference import isolated_rates

# A stage may fall below the level of the stage before it by this fraction, which gives the solver room.
SLACK = 1e-8
# A demand counts as met if less than this fraction of it is missing.
MET = 1e-7
# A row's rate may be worth nothing if its worth is below this fraction of the mean over rows.
PROOF = 1e-2
# With more quotas, each of which ties jobs together, the interior-point method by jobs is slower than a simplex method.
QUOTAS_MAX = 8
# If all jobs, each on its best type, need less than this fraction of the GPUs, their demands can usually be met.
ROOMY = 2 / 3


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Shares, their value, and the prices that prove this value; the prices are explained above."""

    shares: Floats
    value: float
    price: Floats
    worth: Floats
    rent: Floats
    optimal: bool = True
    # By quota; empty if no prices were computed.
    toll: Floats = field(default_factory=lambda: np.zeros(0))

    def with_prices_of(self, other: Point) -> Point:
        """Return this point with the prices of another, which prove the same value."""
        return replace(self, price=other.price, worth=other.worth, rent=other.rent, toll=other.toll)


class Program:
    """The rules for every answer to one problem, and the linear programs that policies solve under them."""

    def __init__(self, problem: Problem, allowed: Bools | None = None) -> None:
        self.problem = problem
        self.count = problem.jobs.count.astype(float)
        columns = problem.columns
        usable = (columns.first_rate > 0) & (problem.capacity[columns.worker_type] > 0)
        if allowed is not None:
            usable &= allowed
        if problem.any_pairs:
            usable &= ~columns.is_pair | (columns.second_rate > 0)
        # The columns that can do work.
        self.usable: Ints = np.flatnonzero(usable)
        self.rates: Sparse = problem.rates.columns(self.usable)
        # What columns take of the GPUs of each type and of CPUs that can run out, and what the cluster has of them.
        self.supply_use, self.supply = supply(problem)
        rules = (problem.membership, self.supply_use, *([problem.quota_use] if len(problem.quotas) else []))
        self._rules = stack(*rules).columns(self.usable)
        self._rule_limits = np.concatenate([self.count, self.supply, problem.quotas.gpus])
        self._first, self._second = columns.first[self.usable], columns.second[self.usable]
        self._no_pairs = not problem.any_pairs or bool((self._second == ALONE).all())
        self._block = self._first if self._no_pairs and len(problem.quotas) <= QUOTAS_MAX else None
        best = self.rates.largest()
        # The best rate of one job of each row. Rows are scaled by it, so that a step per hour and a thousand steps per
        # second look alike to a solver.
        self.best_rate: Floats = np.where(best > 0, best, 1.0)
        # The best rate of all jobs of each row together.
        self._size = self.best_rate * self.count
        # Where the next of the programs along a path begins; with pairs, each begins anew.
        self._start = Start() if self._no_pairs else None

    @cached_property
    def _negated_rates(self) -> Sparse:
        """The matrix that gives -E_m of each row, in units of its best rate."""
        return self.rates.scale_rows(-1.0 / self._size)

    @cached_property
    def best_alone(self) -> Floats:
        """[n] The best rate of one job of each row if it had the whole cluster to itself and no partner."""
        columns, solo = self.problem.columns, self.usable[~self.problem.columns.is_pair[self.usable]]
        best = np.zeros(len(self.count))
        np.maximum.at(best, columns.first[solo], columns.first_rate[solo])
        room = self.problem.capacity[columns.worker_type[solo]]
        for job in np.unique(columns.first[solo[columns.gpus[solo] > room]]).tolist():
            # The job is wider than some type, so even alone it cannot run there all of the time.
            own = solo[columns.first[solo] == job]
            rows = stack(row(np.ones(len(own))), self.supply_use.columns(own))
            limit = np.concatenate([[1.0], self.supply])
            best[job] = (
                columns.first_rate[own] @ solve_lp(LinearProgram(-columns.first_rate[own], rows, limit)).x
            )
        return np.where(best > 0, best, self.best_rate)

    @cached_property
    def isolated_rate(self) -> Floats:
        """[n] I_m of one job of each row."""
        return isolated_rates(self.problem)

    def rules(self, count: Floats) -> tuple[Sparse, Floats]:
        """Return the rules as rows and limits, for this number of jobs in each row."""
        return self._rules, np.concatenate([count, self._rule_limits[len(self.count) :]])

    def effective(self, shares: Floats) -> Floats:
        """Return E_m, summed over the jobs of a row."""
        return self.problem.rates @ shares

    def per_rate(self, gain: Floats) -> Floats:
        """Return the gain of each column, given the gain per unit of each row's rate."""
        return self.problem.rates.T @ gain

    def maximise(
        self,
        gain: Floats,
        *,
        floor: Floats | None = None,
        hold: tuple[Floats, float] | None = None,
        solve: Callable[[LinearProgram], Answer] = solve_lp,
    ) -> Point:
        """Solve max gain @ x with every E_m >= floor_m.

        `hold` is a second gain h and a value v; it adds the requirement h @ x >= v.
        """
        gain = gain[self.usable]
        rows, limits = [self._rules], [self._rule_limits]
        floor_rows: Ints = np.zeros(0, dtype=np.int64)
        if floor is not None:
            floor_rows = np.flatnonzero(floor > 0)
            rows.append(self._negated_rates.rows(floor_rows))
            limits.append(-floor[floor_rows] / self._size[floor_rows])
        if hold is not None:
            held_gain, least = hold[0][self.usable], hold[1]
            unit = max(abs(least), 1e-300)
            rows.append(row(-held_gain / unit))
            limits.append(np.array([-least / unit]))
        scale = float(np.abs(gain).max(initial=0.0)) or 1.0
        program = LinearProgram(-gain / scale, stack(*rows), np.concatenate(limits), self._block)
        answer = solve(program)
        dual = answer.dual * scale
        worth = np.zeros(len(self.count))
        worth[floor_rows] = dual[len(self._rule_limits) :][: len(floor_rows)] / self._size[floor_rows]
        shares = self.within_limits(answer.x)
        return self.point(shares, float(gain @ shares), dual, worth, answer.optimal)

    def improve(self, point: Point, gain: Floats, floor: Floats) -> Point:
        """Return the shares with the greatest gain @ E that keep the floor: the second stage.

        Value and prices stay those of `point`, the result of the first stage. If every job's rate has a positive
        worth, no job can exceed its floor, and `point` is returned.
        """
        if self._all_at_floor(point, floor):
            return point
        try:
            better = self.maximise(self.per_rate(gain), floor=floor * (1.0 - SLACK))
        except SolverFailure:
            return replace(point, optimal=False)
        return replace(point, shares=better.shares, optimal=point.optimal and better.optimal)

    def _all_at_floor(self, point: Point, floor: Floats) -> bool:
        """Return whether the prices prove that no job can rise above the floor if all jobs keep it."""
        worth = point.worth * floor
        proven = point.optimal and bool((worth > PROOF * worth.mean()).all())
        return proven and bool((self.effective(point.shares) <= floor * (1.0 + MET)).all())

    def raise_then_improve(self, need: Floats, gain: Floats) -> Point:
        """Solve max λ with E_m >= λ * need_m for every row; then, λ held, max gain @ E.

        The level is limited by the most demanding job with all of its time on its best type. In a cluster that is not
        full, all jobs can usually reach this limit; then more GPUs would not raise it, and one program solves both
        stages.
        """
        hardest = int(np.argmax(need / self._size))
        if need[hardest] > 0:
            top = float(self._size[hardest] / need[hardest])
            if self._seems_to_have_room(top * need):
                floor = top * need * (1.0 - SLACK)
                try:
                    best = self.maximise(self.per_rate(gain), floor=floor, solve=try_lp)
                except SolverFailure:
                    # The jobs cannot all reach this level, so raise them together instead.
                    pass
                else:
                    worth, rent = np.zeros_like(need), np.zeros_like(need)
                    worth[hardest], rent[hardest] = 1.0 / need[hardest], top / self.count[hardest]
                    return Point(best.shares, top, np.zeros_like(best.price), worth, rent)
        worst_off = self.raise_all(need)
        return self.improve(worst_off, gain, floor=worst_off.value * need)

    def _seems_to_have_room(self, floor: Floats) -> bool:
        """Return whether all jobs can probably get these rates at once; False with pairs.

        A small program soon shows that it has no answer. For a large program the prices are tried first.
        """
        if not self._no_pairs:
            return False
        columns, speed = self.problem.columns, np.zeros(len(floor))
        np.maximum.at(speed, self._first, columns.first_rate[self.usable] / columns.gpus[self.usable])
        gpus = np.divide(floor, speed, out=np.zeros_like(floor), where=floor > 0)
        if gpus.sum() > ROOMY * self.problem.capacity.sum():
            return False
        if self.usable.size < MANY_COLUMNS:
            return True
        return seems_affordable(self.problem, self.usable, floor)

    def raise_all(self, need: Floats) -> Point:
        """Solve max λ with E_m >= λ * need_m for every row; `value` is λ, prices are per unit of λ."""
        n, k = len(self.count), self.usable.size
        scaled_need = need / self._size
        if not (scaled_need > 0).any():
            raise SolverFailure("nothing is needed by any job")
        # No level above this is possible, so the program's own λ is in [0, 1].
        unit = 1.0 / float(scaled_need.max())
        program = LinearProgram(
            cost=np.concatenate([np.zeros(k), [-1.0]]),
            rows=beside(
                stack(self._rules, self._negated_rates),
                column(np.concatenate([np.zeros(len(self._rule_limits)), scaled_need * unit])),
            ),
            limit=np.concatenate([self._rule_limits, np.zeros(n)]),
            block=self._blocks(np.array([ALONE])),
            start=self._start,
        )
        answer = solve_lp(program)
        level = float(answer.x[-1]) * unit
        dual = answer.dual * unit
        worth = dual[len(self._rule_limits) :] / self._size
        return self.point(self.within_limits(answer.x[:k]), level, dual, worth, answer.optimal)

    def raise_apart(self, need: Floats, part: Ints, quotas: Ints, start: Start) -> tuple[Floats, Point]:
        """Solve max λ_p with E_m >= λ_p * need_m for the rows m of each part p, as if there were GPUs for all.

        `part` [n]: the part of each row, negative for rows that are left out; no pair and none of these `quotas` has
        jobs of two parts. Returns λ, and the prices of all parts, per unit of each part's λ.
        """
        n, inside = len(self.count), np.flatnonzero(part >= 0)
        columns = np.flatnonzero(part[self._first] >= 0)
        rules = np.concatenate([inside, n + len(self.supply) + quotas])
        owner, parts, k = part[inside], int(part.max()) + 1, len(columns)
        scaled_need = need[inside] / self._size[inside]
        highest = np.zeros(parts)
        np.maximum.at(highest, owner, scaled_need)
        unit = 1.0 / highest
        level = Sparse(
            scaled_need * unit[owner],
            len(rules) + np.arange(len(inside)),
            owner,
            (len(rules) + len(inside), parts),
        )
        program = LinearProgram(
            cost=np.concatenate([np.zeros(k), np.full(parts, -1.0)]),
            rows=beside(
                stack(self._rules.rows(rules), self._negated_rates.rows(inside)).columns(columns), level
            ),
            limit=np.concatenate([self._rule_limits[rules], np.zeros(len(inside))]),
            start=start,
        )
        answer = solve_lp(program)
        rent, worth, toll = np.zeros(n), np.zeros(n), np.zeros(len(self.problem.quotas))
        part_of = np.zeros(len(toll), dtype=np.int64)
        part_of[self.problem.quotas.quota] = part[self.problem.quotas.job]
        rent[inside] = answer.dual[: len(inside)] * unit[owner]
        toll[quotas] = answer.dual[len(inside) : len(rules)] * unit[part_of[quotas]]
        worth[inside] = answer.dual[len(rules) :] * unit[owner] / self._size[inside]
        none = np.zeros(len(self.supply))
        levels = answer.x[k:] * unit
        point = Point(np.zeros(0), float(levels.min()), none, worth, rent, answer.optimal, toll)
        return levels, point

    def least_shortfall(self, need: Floats) -> Floats:
        """Return the s_m in [0, 1] with the least sum over all jobs such that E_m >= (1 - s_m) * need_m."""
        rows_in_need = np.flatnonzero(need > 0)
        program = self._shortfall(rows_in_need, need[rows_in_need])
        answer = solve_lp(program)
        shortfall = np.zeros(len(self.count))
        shortfall[rows_in_need] = answer.x[self.usable.size :]
        return shortfall

    def most_needs_met(self, need: Floats) -> tuple[Floats, bool]:
        """Return s_m, each 0 or 1, such that as many needs as possible are met, and whether this is proven."""
        rows_in_need = np.flatnonzero(need > 0)
        program = self._shortfall(rows_in_need, need[rows_in_need])
        k = self.usable.size
        answer = solve_milp(program, np.arange(k, k + len(rows_in_need)))
        shortfall = np.zeros(len(self.count))
        shortfall[rows_in_need] = np.round(answer.x[k:])
        return shortfall, answer.optimal

    def _shortfall(self, rows_in_need: Ints, need: Floats) -> LinearProgram:
        k, size = self.usable.size, self._size[rows_in_need]
        return LinearProgram(
            cost=np.concatenate([np.zeros(k), self.count[rows_in_need]]),
            rows=stack(
                beside(self._rules, zeros(len(self._rule_limits), len(rows_in_need))),
                beside(self._negated_rates.rows(rows_in_need), diagonal(-need / size)),
                beside(zeros(len(rows_in_need), k), identity(len(rows_in_need))),
            ),
            limit=np.concatenate([self._rule_limits, -need / size, np.ones(len(rows_in_need))]),
            block=self._blocks(rows_in_need),
        )

    def allocation(self, policy: str, point: Point, **other: Any) -> Allocation:
        """Return a point as a policy's answer; other fields of the Allocation can be given by name."""
        return Allocation(
            **{
                "policy": policy,
                "time_share": even_widths(self.problem, self.usable, point.shares),
                "value": point.value,
                "price": point.price[: len(self.problem.capacity)],
                "isolated_rate": self.isolated_rate,
                "backfill": np.ones(len(self.problem.columns), dtype=bool),
                "optimal": point.optimal,
                **other,
            }
        )

    def _blocks(self, more: Ints) -> Ints | None:
        """Return the job of each usable column, followed by `more`; None with pairs."""
        return None if self._block is None else np.concatenate([self._block, more])

    def within_limits(self, x: Floats) -> Floats:
        """Return the shares of usable columns, scaled down if they exceed a limit by the solver's tolerance."""
        limit, used = self._rule_limits, self._rules @ x
        over = used > limit
        if not over.any():
            return x
        fits = np.divide(limit, used, out=np.ones(len(used)), where=over)
        fit = np.ones(len(x))
        np.minimum.at(fit, self._rules.column, fits[self._rules.row])
        return np.asarray(x * fit)

    def bound(self, point: Point) -> float:
        """Return the bound on `worth @ E` that the prices of a point prove."""
        of_gpus = point.price @ self.supply + point.rent @ self.count
        return float(of_gpus + point.toll @ self.problem.quotas.gpus)

    def is_free_of_tolls(self, point: Point) -> bool:
        """Return whether the bound that the prices of a point prove would also hold without quotas."""
        return float(point.toll @ self.problem.quotas.gpus) <= MET * abs(self.bound(point))

    def gpu_cost(self, point: Point) -> Floats:
        """[usable] Return the cost of the GPUs and CPUs of each usable column: their price, and the tolls of quotas."""
        columns = self.problem.columns
        cost = columns.gpus[self.usable] * point.price[columns.worker_type[self.usable]]
        if len(self.supply) > len(self.problem.capacity):
            cost = self.supply_use.columns(self.usable).T @ point.price
        if len(self.problem.quotas):
            cost = cost + self.problem.quota_use.columns(self.usable).T @ point.toll
        return np.asarray(cost)

    def proven(self, point: Point) -> Point:
        """Return a point with the least rents that its other prices allow; with pairs, as it is.

        A solver's rents may be too low or too high by its tolerance. Of a job at its best rate, this would seem to be
        a bound that others cannot pass.
        """
        if not self._no_pairs:
            return point
        rate = self.problem.columns.first_rate[self.usable]
        rent = np.zeros(len(self.count))
        np.maximum.at(rent, self._first, point.worth[self._first] * rate - self.gpu_cost(point))
        return replace(point, rent=rent)

    def point(self, x: Floats, value: float, dual: Floats, worth: Floats, optimal: bool) -> Point:
        """Return the point of the shares x of usable columns; `dual` begins with the duals of the rules."""
        n = len(self.count)
        shares = np.zeros(len(self.problem.columns))
        shares[self.usable] = x
        price, toll = np.split(dual[n : len(self._rule_limits)], [len(self.supply)])
        return Point(shares, value, price, worth, dual[:n], optimal, toll)
