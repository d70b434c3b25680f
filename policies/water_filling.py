"""Max-min fairness at every level: when some jobs can rise no further, the others still rise."""

from __future__ import annotations

import numpy as np

from policies.engine.filling import FairJobs, fill
from policies.problem import Allocation, Floats, Problem
from policies.program import Program
from policies.reference import proportional_rates
from policies.registry import policy


@policy("water_filling")
def water_filling(problem: Problem) -> Allocation:
    """lexicographic max-min of g_m E_m / (w_m P_m)"""
    program = Program(problem)
    jobs, P = problem.jobs, proportional_rates(problem)

    def all_jobs(cap: Floats) -> FairJobs:
        return FairJobs(jobs.weight, cap, program.count, rows=np.arange(len(jobs)))

    result = fill(program, all_jobs, unit=P / jobs.gpus)
    return program.allocation("water_filling", result.point(value=float((result.v / jobs.weight).min())))
