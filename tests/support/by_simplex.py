"""The policies' programs written down again, dense, for another solver; and a check of the promises of their prices."""

import numpy as np
import pytest
from scipy.optimize import linprog

from policies.problem import Floats, Problem
from policies.program import Point, Program
from policies.reference import proportional_rates


def needs(problem: Problem) -> Floats:
    """The rate that every job needs at λ = 1 under `las`."""
    return problem.jobs.count * problem.jobs.weight * proportional_rates(problem) / problem.jobs.gpus


def best_by_simplex(
    problem: Problem, gain: Floats, floor: Floats | None = None, need: Floats | None = None
) -> float | None:
    """Solve the same program, written down again and dense, with HiGHS. Return None if it is infeasible.

    With `need`, the greatest level is the objective.
    """
    rates, k = problem.rates.toarray(), len(problem.columns)
    idle = (problem.columns.first_rate == 0) | (problem.columns.is_pair & (problem.columns.second_rate == 0))
    rows = [problem.membership.toarray(), problem.occupancy.toarray(), cpus_of_types(problem)]
    limit = [problem.jobs.count, problem.capacity, np.minimum(problem.cpus, 1e9)]
    if floor is not None:
        rows, limit = [*rows, -rates], [*limit, -floor]
    rows = np.vstack(rows)
    level = np.zeros((len(rows), 1))
    if need is not None:
        rows, level = np.vstack([rows, -rates]), np.vstack([level, need[:, None]])
        limit.append(np.zeros(len(need)))
    solution = linprog(
        np.append(-gain, 0.0 if need is None else -1.0),
        A_ub=np.hstack([rows, level]),
        b_ub=np.concatenate(limit),
        bounds=[*((0, 0 if i else None) for i in idle[:k]), (0, None if need is not None else 0)],
        method="highs",
    )
    return None if solution.x is None else -float(solution.fun)


def cpus_of_types(problem: Problem) -> Floats:
    """[t × k] The CPUs that each column needs, in the row of its type."""
    columns = problem.columns
    return np.where(np.arange(len(problem.worker_types))[:, None] == columns.worker_type, columns.cpus, 0.0)


def assert_prices_bound_everything(program: Program, point: Point, seed: int) -> None:
    """Check that worth @ E <= price @ capacity + rent @ count for any feasible shares."""
    problem, rng = program.problem, np.random.default_rng(seed)
    bound = point.price @ program.supply + point.rent @ program.count
    for _ in range(20):
        share = rng.exponential(size=len(problem.columns)) * (rng.random(len(problem.columns)) < 0.5)
        share[np.setdiff1d(np.arange(len(share)), program.usable)] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.concatenate(
                [
                    program.count / (problem.membership @ share),
                    problem.capacity / (problem.occupancy @ share),
                    problem.cpus / (cpus_of_types(problem) @ share),
                ]
            )
        share *= min(1.0, float(np.nanmin(room, initial=np.inf)))
        worth = point.worth @ program.effective(share)
        assert worth <= bound * (1 + 1e-6) + 1e-9
    assert point.worth @ program.effective(point.shares) == pytest.approx(bound, rel=1e-4, abs=1e-7)
