"""Steps left and deadlines, for policies that consider the remaining work."""

from __future__ import annotations

import numpy as np

from policies.errors import MissingFacts, SolverFailure, name_some
from policies.problem import Floats, Problem
from policies.program import MET, Program


def known_steps(problem: Problem, policy: str) -> Floats:
    """Return R_m, the steps left of each job; raise an error that names the jobs without this number."""
    steps = problem.jobs.steps_left
    unknown = np.flatnonzero(np.isinf(steps))
    if unknown.size:
        ids = name_some(problem.names_of(unknown))
        raise MissingFacts(f"{policy} needs steps_left, which is missing for {ids}")
    return steps


def deadline_floor(program: Program, policy: str) -> tuple[Floats, tuple[str, ...]]:
    """Return the E_m that each job needs for its deadline (0 without one), and notes on the deadlines that are missed.

    The shortfalls s_m are chosen with the least sum such that E_m >= (1 - s_m) R_m / D_m for every deadline. A job with
    s_m = 0 must keep its deadline; the other deadlines are dropped. If there are at most 50 deadlines, as many of them
    as possible are kept.
    """
    jobs = program.problem.jobs
    has_deadline = np.isfinite(jobs.deadline_s)
    if not has_deadline.any():
        return np.zeros(len(jobs)), ()
    unknown = np.flatnonzero(has_deadline & np.isinf(jobs.steps_left))
    if unknown.size:
        ids = name_some(program.problem.names_of(unknown))
        raise MissingFacts(f"{policy} needs steps_left of jobs with a deadline, which is missing for {ids}")
    in_future = has_deadline & (jobs.deadline_s > 0)
    need = np.zeros(len(jobs))
    need[in_future] = (jobs.count * jobs.steps_left)[in_future] / jobs.deadline_s[in_future]
    # No job can exceed its best rate, even without other jobs.
    reachable = need <= program.best_rate * jobs.count * (1.0 + MET)
    unmet, proven = _shortfall(program, np.where(reachable, need, 0.0))
    is_kept = in_future & reachable & (unmet <= MET)
    missed = np.flatnonzero(has_deadline & ~is_kept)
    notes: list[str] = []
    if missed.size:
        notes.append(f"deadline missed by {name_some(program.problem.names_of(missed), limit=20)}")
    if not proven:
        notes.append("more deadlines could perhaps be kept: the search stopped early")
    return np.where(is_kept, need, 0.0), tuple(notes)


def _shortfall(program: Program, need: Floats) -> tuple[Floats, bool]:
    """Return the unmet fraction of each job's need, and whether it is proven that no more deadlines can be kept."""
    if not need.any():
        return need, True
    unmet = program.least_shortfall(need)
    if (unmet <= MET).all() or program.count[need > 0].sum() > 50:
        return unmet, True
    try:
        return program.most_needs_met(need)
    except SolverFailure:
        return unmet, False
