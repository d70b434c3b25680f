"""Strategy-proof shares: no user gains by reporting false rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.engine.solvers import run_clarabel
from policies.engine.sparse import beside, identity, stack, zeros
from policies.errors import ProblemError
from policies.problem import Allocation, Floats, Problem
from policies.program import Program
from policies.registry import policy


@policy("strategy_proof", reads=(), optimum=False)
def strategy_proof(problem: Problem, *, exact: int = 256) -> Allocation:
    """X* = argmax Σ log E_m; job m gets d_m X*_m, d_m = Π_{m' ≠ m} E_m'(X*) / E_m'(X* without m)

    E_m is the rate of job m under the shares X. X* without m are the best shares if job m did not exist.
    """
    if isinstance(exact, bool) or not isinstance(exact, int) or exact < 0:
        raise ProblemError(f"strategy_proof: exact is {exact}, must be a whole number of at least 0")
    program = Program(problem)
    count = program.count
    best = _proportionally_fair(program, count)
    notes: tuple[str, ...] = (
        "the time taken by discounts stays idle: giving it to others would reward false rates",
    )
    if len(count) <= exact:
        discount = np.array([_discount(program, best, row) for row in range(len(count))])
    else:
        # If job m left, Σ log E of the others would grow by at most what m pays at the prices of `best`: `best.spent`.
        # So this discount is never greater than the exact discount.
        discount = np.exp(-best.spent)
        notes += (f"{len(count)} kinds of jobs exceed exact={exact}: discounts are first-order bounds",)
    columns = problem.columns
    second = np.where(columns.is_pair, columns.second, columns.first)
    share = best.shares * np.minimum(discount[columns.first], discount[second])
    return Allocation(
        policy="strategy_proof",
        time_share=share,
        value=float(count @ np.log(best.rate)),
        price=best.price,
        isolated_rate=program.isolated_rate,
        backfill=np.zeros(len(columns), dtype=bool),
        optimal=best.optimal,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Fair:
    """Proportionally fair shares. `rate` is the rate of one job, `spent` the fraction of a budget of 1 that it pays."""

    shares: Floats
    rate: Floats
    price: Floats
    spent: Floats
    optimal: bool


def _discount(program: Program, best: _Fair, row: int) -> float:
    """Return the product, over all other jobs, of their rate with this job divided by their rate without it."""
    others = program.count.copy()
    others[row] -= 1
    if not others.any():
        return 1.0
    without_job = _proportionally_fair(program, others)
    remaining = others > 0
    return min(
        1.0, float(np.exp(others[remaining] @ np.log(best.rate[remaining] / without_job.rate[remaining])))
    )


def _proportionally_fair(program: Program, count: Floats) -> _Fair:
    """Solve max Σ count_m log E_m over the rows with jobs; each τ_m <= log E_m is an exponential cone."""
    import clarabel

    problem, usable = program.problem, program.usable
    present = np.flatnonzero(count > 0)
    n, k = len(present), usable.size
    rate_scale = (program.best_rate * count)[present]
    rules, limit = program.rules(count)
    rates = program.rates.rows(present)
    tau = beside(zeros(n, k), identity(n, -1.0))
    negated_rates = beside(rates.scale_rows(-1.0 / rate_scale), zeros(n, n))
    # Each job's cone is the three rows (τ, 1, E).
    job_by_job = np.arange(3 * n).reshape(3, n).T.ravel()
    rows = stack(
        beside(rules, zeros(len(limit), n)),
        beside(identity(k, -1.0), zeros(k, n)),
        stack(tau, zeros(n, k + n), negated_rates).rows(job_by_job),
    )
    bounds = np.concatenate([limit, np.zeros(k), np.tile([0.0, 1.0, 0.0], n)])
    cones: list[Any] = [clarabel.NonnegativeConeT(len(limit) + k), *[clarabel.ExponentialConeT()] * n]
    solution = run_clarabel(np.concatenate([np.zeros(k), -count[present]]), rows, bounds, cones)
    x = np.maximum(np.asarray(solution.x)[:k], 0.0)
    shares = np.zeros(len(problem.columns))
    shares[usable] = x
    rate = np.ones(len(count))
    rate[present] = (rates @ x) / count[present]
    dual = np.asarray(solution.z)[: len(limit)]
    spent = np.zeros(len(count))
    spent[present] = np.clip(1.0 - dual[: len(count)][present], 0.0, 1.0)
    price = np.maximum(dual[len(count) :][: len(problem.capacity)], 0.0)
    return _Fair(shares, rate, price, spent, solution.status == clarabel.SolverStatus.Solved)
