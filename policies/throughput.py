"""The greatest total work of the cluster, without fairness between jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.engine.steps import deadline_floor
from policies.problem import Allocation, Problem
from policies.program import Program
from policies.reference import best_rates
from policies.registry import policy


@policy("max_throughput", reads=("deadline_s",))
def max_throughput(problem: Problem, *, raw: bool = False) -> Allocation:
    """max Σ g_m E_m / T_m^best (raw=true: the plain Σ E_m), keeping deadlines where possible"""
    program = Program(problem)
    floor, notes = deadline_floor(program, "max_throughput")
    per_rate = np.ones(len(problem.jobs)) if raw else problem.jobs.gpus / best_rates(problem)
    best = program.maximise(program.per_rate(per_rate), floor=floor)
    return replace(program.allocation("max_throughput", best), notes=notes)
