"""Max-min fairness of normalised rates: least attained service (LAS), aware of the speed of each type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.engine.filling import fill
from policies.engine.sharing import fair_jobs
from policies.problem import Allocation, Floats, Problem
from policies.program import SLACK, Point, Program
from policies.reference import proportional_rates
from policies.registry import policy


@policy("max_min_fairness", "las")
def max_min_fairness(problem: Problem) -> Allocation:
    """max λ: g_m E_m / (w_m P_m) >= λ for all m; then, λ held, max Σ g_m E_m / P_m

    A job that is stopped by a quota before GPUs are scarce keeps its level, and λ rises on for the others.
    """
    program = Program(problem)
    jobs, P = problem.jobs, proportional_rates(problem)
    if len(problem.quotas):
        return program.allocation("max_min_fairness", _past_quotas(program, P / jobs.gpus))
    # E_m of all jobs of a row at λ = 1.
    need = jobs.count * jobs.weight * P / jobs.gpus
    best = program.raise_then_improve(need, jobs.gpus / P)
    return program.allocation("max_min_fairness", best)


def _past_quotas(program: Program, unit: Floats) -> Point:
    """Raise λ until GPUs are scarce: jobs that quotas stop on the way stay where they are. Then maximise the total."""
    jobs = program.problem.jobs
    result = fill(program, fair_jobs(jobs), unit, is_last=program.is_free_of_tolls)
    point = result.point(value=float((result.v / jobs.weight).min()))
    if not point.optimal:
        return point
    # The heights are met up to the tolerance of the search, the rates of these shares exactly.
    reached = np.minimum(result.v * unit * program.count, program.effective(result.shares))
    floor = reached * (1.0 - SLACK)
    best = program.maximise(program.per_rate(1.0 / unit), floor=floor)
    return replace(point, shares=best.shares, optimal=best.optimal)
