"""Finish-time fairness: no job finishes much later than it would in an equal slice of the cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.engine.filling import furthest
from policies.errors import name_some
from policies.problem import Allocation, Floats, Problem
from policies.program import MET, Program
from policies.registry import policy

TINY = float(np.finfo(float).tiny)


@policy("finish_time_fairness", "ftf", reads=("steps_left", "waited_s", "isolated_s"))
def finish_time_fairness(problem: Problem) -> Allocation:
    """min ρ: (t_m + R_m / E_m) / (A_m + R_m / I_m) <= ρ, a job that cannot reach it gets its best rate;
    then, held, max Σ E_m / I_m
    """
    program = Program(problem)
    jobs, n = problem.jobs, problem.jobs.count
    t, R, A, I = jobs.waited_s, jobs.steps_left, jobs.isolated_s, program.isolated_rate
    best_alone = program.best_alone
    least_s_per_step = 1.0 / best_alone
    # For jobs of unknown length, the limit of the formula for R_m → ∞ applies: I_m / E_m <= ρ.
    unknown = np.isinf(R)
    # S is (A_m + R_m / I_m) / R_m, age is t_m / R_m.
    S = np.where(unknown, 1.0 / I, A / np.where(unknown, 1.0, R) + 1.0 / I)
    age = np.where(unknown, 0.0, t / np.where(unknown, 1.0, R))

    def rate(u: float) -> Floats:
        """Return E_m(ρ) at u = 1/ρ: R_m / (ρ S_m - t_m), or the best rate alone if that is lower."""
        s_per_step = S / max(u, TINY) - age
        slower = s_per_step > least_s_per_step
        return np.where(slower, 1.0 / np.maximum(s_per_step, least_s_per_step), best_alone)

    top = float((S / (age + least_s_per_step)).max())
    # At u = 0 no work is required, and the times overflow.
    with np.errstate(over="ignore"):
        u, point = furthest(program, lambda u: n * rate(u), top)
    best = program.improve(point, 1.0 / I, floor=n * rate(u) * min(1.0, point.value))
    E = np.maximum(program.effective(best.shares) / n, rate(u))
    rho = (age + 1.0 / E) / S
    unreachable = np.flatnonzero(rho > (1.0 + MET) / u)
    notes: tuple[str, ...] = ()
    if unreachable.size:
        ids = name_some(problem.names_of(unreachable))
        notes = (f"cannot reach ρ = {1.0 / u:.4g} even alone, and get their best rate: {ids}",)
    step = u * 1e-6
    slope = float(point.worth @ (n * (rate(u) - rate(u - step)))) / step
    worst = int(rho.argmax())
    # A job that has its best rate and is still the worst off gains nothing from more GPUs.
    gains_from_gpus = slope > 0 and rate(u)[worst] < best_alone[worst] * (1.0 - MET)
    price = -point.price / (slope * u**2) if gains_from_gpus else np.zeros_like(point.price)
    answer = program.allocation("finish_time_fairness", replace(best, value=float(rho.max()), price=price))
    return replace(answer, notes=notes)
