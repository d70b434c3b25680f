"""An objective written in cvxpy, over the columns of a problem.

    model = Model(problem)
    x, E = model.x, model.E
    point = model.maximise(cp.sum(cp.log(E)))
    return model.allocation("my_policy", point)

This is the quick way to try an objective, and the only way to solve one that is not linear. An objective for thousands
of jobs belongs in a `Program`, which is many times faster.

`gavel` imports every module of `policies/` when it starts, and cvxpy takes a second to import. So import cvxpy inside
the policy's function, as `Model` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from policies.engine.solvers import MAX_ITERATIONS, TOLERANCE, time_left_s
from policies.engine.sparse import Sparse
from policies.errors import SolverFailure
from policies.problem import Allocation, Bools, Floats, Problem
from policies.program import SLACK, Point, Program

# An expression or a constraint of cvxpy, which has no type hints.
Expression = Any
Constraint = Any


class Model:
    """The shares of a problem as a variable, expressions that follow from them, and the rules that always hold.

    Arrays are indexed as in the problem: `k` columns, `n` rows of jobs (a row may stand for several equal jobs, see
    `jobs.count`), `t` worker types.
    """

    def __init__(self, problem: Problem, allowed: Bools | None = None) -> None:
        """Model a problem; `allowed` [k] restricts it to some of its columns."""
        import cvxpy as cp

        self.problem = problem
        self.program = Program(problem, allowed)
        usable = self.program.usable
        self._shares = cp.Variable(usable.size, nonneg=True)
        size = len(problem.columns), usable.size
        embedding = Sparse(np.ones(usable.size), usable, np.arange(usable.size), size)
        # [k] The share of wall-clock time in which each column runs; 0 if it can do no work.
        self.x: Expression = embedding.compressed() @ self._shares
        # [n] Effective rates: the steps per second of all jobs of a row together.
        self.E: Expression = problem.rates.compressed() @ self.x
        # [n] The shares of time in which the jobs of a row run, added: at most 1 for each job.
        self.time: Expression = problem.membership.compressed() @ self.x
        # [t] GPUs in use, on average over time: at most the capacity.
        self.gpus: Expression = problem.occupancy.compressed() @ self.x
        # In the order of the duals of a `Point`.
        use = self.program.supply_use.compressed() @ self.x
        self._rules: list[Constraint] = [self.time <= problem.jobs.count, use <= self.program.supply]
        if len(problem.quotas):
            self._rules.append(problem.quota_use.compressed() @ self.x <= problem.quotas.gpus)

    def maximise(self, gain: Expression, *constraints: Constraint) -> Point:
        """Return the shares with the greatest gain under the rules and these constraints; `gain` must be concave.

        The point's price is what one more GPU of each type would add to the gain.
        """
        import cvxpy as cp

        task = cp.Problem(cp.Maximize(gain), [*self._rules, *constraints])
        try:
            task.solve(solver=cp.CLARABEL, **_options())
        except cp.SolverError as error:
            raise SolverFailure(str(error)) from None
        if task.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            raise SolverFailure(f"Clarabel: {task.status}")
        rules = np.concatenate([rule.dual_value for rule in self._rules])
        shares = self.program.within_limits(np.maximum(self._shares.value, 0.0))
        worth = np.zeros(len(self.problem.jobs))
        return self.program.point(shares, float(task.value), rules, worth, task.status == cp.OPTIMAL)

    def improve(self, point: Point, gain: Expression, floor: Floats) -> Point:
        """Return the shares with the greatest gain that give every row at least its `floor` of E.

        Use it as the second stage of an objective with several optima. Value and price stay those of `point`.
        """
        size = self.program.best_rate * self.problem.jobs.count
        better = self.maximise(gain, self.E / size >= floor * (1.0 - SLACK) / size)
        return replace(point, shares=better.shares, optimal=point.optimal and better.optimal)

    def allocation(self, policy: str, point: Point, **other: Any) -> Allocation:
        """Return a point as the policy's answer; other fields of the Allocation can be given by name."""
        return self.program.allocation(policy, point, **other)


def _options() -> dict[str, Any]:
    """Return the settings under which Clarabel gives the same answer every time, within the remaining time."""
    options: dict[str, Any] = {
        "max_threads": 1,
        "max_iter": MAX_ITERATIONS,
        **dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), TOLERANCE),
    }
    left_s = time_left_s()
    if left_s <= 0:
        raise SolverFailure("no time left")
    return {**options, "time_limit": left_s} if np.isfinite(left_s) else options
