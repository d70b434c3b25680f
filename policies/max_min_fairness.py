"""Max-min fairness of normalised rates: least attained service (LAS), aware of the speed of each type."""

from __future__ import annotations

from policies.problem import Allocation, Problem
from policies.program import Program
from policies.reference import proportional_rates
from policies.registry import policy


@policy("max_min_fairness", "las")
def max_min_fairness(problem: Problem) -> Allocation:
    """max λ: g_m E_m / (w_m P_m) >= λ for all m; then, λ held, max Σ g_m E_m / P_m"""
    program = Program(problem)
    jobs, P = problem.jobs, proportional_rates(problem)
    # E_m of all jobs of a row at λ = 1.
    need = jobs.count * jobs.weight * P / jobs.gpus
    best = program.raise_then_improve(need, jobs.gpus / P)
    return program.allocation("max_min_fairness", best)
