"""The earliest end of a batch of jobs that have all arrived."""

from __future__ import annotations

from dataclasses import replace

from policies.engine.steps import known_steps
from policies.problem import Allocation, Problem
from policies.program import Program
from policies.registry import policy


@policy("makespan", "min_total_duration", reads=("steps_left",))
def makespan(problem: Problem) -> Allocation:
    """max u: E_m >= u R_m for all m; then, u held, max Σ E_m / R_m; the value is 1/u in seconds"""
    program = Program(problem)
    R = known_steps(problem, "makespan")
    need = problem.jobs.count * R
    best = program.raise_then_improve(need, 1.0 / R)
    u = best.value
    return program.allocation("makespan", replace(best, value=1.0 / u, price=-best.price / u**2))
