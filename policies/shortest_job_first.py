"""Shortest job first: time on a GPU counts more for a shorter job."""

from __future__ import annotations

from policies.engine.steps import known_steps
from policies.problem import Allocation, Problem
from policies.program import Program
from policies.registry import policy


@policy("shortest_job_first", "sjf", reads=("steps_left",))
def shortest_job_first(problem: Problem) -> Allocation:
    """max Σ w_m E_m / R_m"""
    program = Program(problem)
    R = known_steps(problem, "shortest_job_first")
    return program.allocation(
        "shortest_job_first", program.maximise(program.per_rate(problem.jobs.weight / R))
    )
