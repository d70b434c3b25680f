"""The interior-point method for programs that decompose into jobs: it answers, and its answers are optimal."""

import numpy as np
import pytest
from scipy.optimize import linprog

import policies.program
from policies.engine.interior import solve_blocks
from policies.engine.solvers import LinearProgram, solve_lp
from policies.problem import Problem
from policies.registry import resolve


def programs(monkeypatch: pytest.MonkeyPatch, spec: str, problem: Problem) -> list[LinearProgram]:
    """Every linear program that the policy solves."""
    recorded: list[LinearProgram] = []

    def record(program: LinearProgram):
        recorded.append(program)
        return solve_lp(program)

    monkeypatch.setattr(policies.program, "solve_lp", record)
    resolve(spec)(problem)
    return recorded


def different_jobs(types: int, capacity: float, jobs: int = 120, seed: int = 0) -> Problem:
    """Jobs that differ in rates, weights and steps left, on types of equal size."""
    draw = np.random.default_rng(seed)
    return Problem.from_rates(
        draw.uniform(1, 10, (jobs, types)),
        draw.choice([1, 2, 4], jobs),
        np.full(types, capacity),
        weight=draw.choice([1.0, 5.0], jobs),
        steps_left=10 ** draw.uniform(2, 5, jobs),
        waited_s=draw.uniform(0, 1e4, jobs),
    )


CLUSTERS = {
    "one type, short": different_jobs(1, 40.0),
    "one type, plenty": different_jobs(1, 400.0),
    "three types, short": different_jobs(3, 20.0),
    "three types, plenty": different_jobs(3, 200.0),
    "less than a GPU": different_jobs(2, 0.5),
    "all alike": Problem.from_rates(np.ones((100, 2)), 1, [30, 30], steps_left=100.0),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("spec", ["las", "makespan", "max_throughput", "sjf", "ftf", "water_filling"])
def test_it_reaches_the_optimum(spec: str, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is feasible, its duals prove that it is optimal, and HiGHS finds the same value."""
    for task in programs(monkeypatch, spec, CLUSTERS[cluster]):
        # The program of one job alone in the cluster does not decompose.
        if task.block is None:
            continue
        x, dual = solve_blocks(task.cost, task.rows, task.limit, task.block)
        value = float(task.cost @ x)
        assert x.min() >= 0
        assert dual.min() >= 0
        assert (task.rows @ x - task.limit).max() <= 1e-7
        assert (task.cost + task.rows.T @ dual).min() >= -1e-7 * max(np.abs(task.cost).max(), dual.max())
        assert -(task.limit @ dual) == pytest.approx(value, rel=1e-7)
        best = linprog(task.cost, A_ub=task.rows.compressed(), b_ub=task.limit, method="highs").fun
        assert value == pytest.approx(best, rel=1e-6)
