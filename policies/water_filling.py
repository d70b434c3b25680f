"""Max-min fairness at every level: when some jobs can rise no further, the others still rise."""

from __future__ import annotations

from policies.engine.filling import fill
from policies.engine.sharing import fair_jobs
from policies.problem import Allocation, Problem
from policies.program import Program
from policies.reference import proportional_rates
from policies.registry import policy


@policy("water_filling")
def water_filling(problem: Problem) -> Allocation:
    """lexicographic max-min of g_m E_m / (w_m P_m)"""
    program = Program(problem)
    jobs, P = problem.jobs, proportional_rates(problem)
    result = fill(program, fair_jobs(jobs), unit=P / jobs.gpus)
    return program.allocation("water_filling", result.point(value=float((result.v / jobs.weight).min())))
