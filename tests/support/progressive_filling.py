"""Lexicographic max-min by its definition: raise all jobs, find those that are stuck, continue with the others.

One linear program per step finds how far all can rise, and one per job whether it alone could still rise
while no other falls. Slow, but independent of the cuts and prices of `policies/engine/filling.py`.
"""

from collections.abc import Callable

import cvxpy as cp
import numpy as np

from policies.problem import Problem
from tests.support.formulations import HELD, Optimum, Plain, proportional, solved

# A job is stuck if it can rise by less than this fraction of its height.
STUCK = 1e-6


def water_filling(problem: Problem, P: np.ndarray | None = None) -> Optimum:
    """v_m = g_m E_m / P_m, unstuck jobs rising at the rate of their weight; the value is the lowest v_m / w_m."""
    weight = problem.jobs.weight
    height, unit = _fill(problem, P, lambda stuck: np.where(stuck, 0.0, weight))
    return Optimum(float((height / weight).min()), height * unit)


def hierarchical(problem: Problem, P: np.ndarray | None = None) -> Optimum:
    """Fill at rates that come down the tree of tenants; the value is the lowest height."""
    height, unit = _fill(problem, P, lambda stuck: rates_of_rise(problem, stuck))
    return Optimum(float(height.min()), height * unit)


def rates_of_rise(problem: Problem, stuck: np.ndarray) -> np.ndarray:
    """A tenant's rate goes to its jobs that are not stuck: by weight, or to the earliest."""
    rate = np.zeros(len(stuck))
    _pass_down(problem, "", 1.0, stuck, rate)
    return rate


def _pass_down(problem: Problem, path: str, amount: float, stuck: np.ndarray, rate: np.ndarray) -> None:
    jobs, listed = problem.jobs, {tenant.name: tenant for tenant in problem.tenants}
    able = [m for m in range(len(jobs)) if not stuck[m]]
    own = [m for m in able if jobs.tenant[m] == path]
    if own and path in listed and listed[path].policy == "fifo":
        rate[min(own, key=lambda m: (-jobs.waited_s[m], jobs.ids[m]))] = amount
        return
    depth = len(path.split("/")) if path else 0
    below = sorted(
        {
            "/".join(jobs.tenant[m].split("/")[: depth + 1])
            for m in able
            if jobs.tenant[m]
            and jobs.tenant[m] != path
            and (not path or jobs.tenant[m].startswith(path + "/"))
        }
    )
    if not below:
        total = sum(jobs.weight[m] for m in own)
        for m in own:
            rate[m] = amount * jobs.weight[m] / total
        return
    weight = [listed[name].weight if name in listed else 1.0 for name in below]
    # Jobs without a tenant count together as one more child.
    total = sum(weight) + (1.0 if own else 0.0)
    for name, w in zip(below, weight, strict=True):
        _pass_down(problem, name, amount * w / total, stuck, rate)
    for m in own:
        rate[m] = amount / total * jobs.weight[m] / sum(jobs.weight[k] for k in own)


def _fill(
    problem: Problem, P: np.ndarray | None, rise: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Heights at which every job is stuck, and the rate that one unit of height is."""
    n, plain = len(problem.jobs), Plain(problem)
    unit = (proportional(problem) if P is None else P) / problem.jobs.gpus
    v = cp.multiply(plain.E, 1.0 / unit)
    floor, rate, chosen = (
        cp.Parameter(n, nonneg=True),
        cp.Parameter(n, nonneg=True),
        cp.Parameter(n, nonneg=True),
    )
    step = cp.Variable(nonneg=True)
    together = cp.Problem(cp.Maximize(step), [*plain.always, v >= floor + cp.multiply(rate, step)])
    by_itself = cp.Problem(cp.Maximize(chosen @ v), [*plain.always, v >= floor])
    height, stuck = np.zeros(n), np.zeros(n, dtype=bool)
    while not stuck.all():
        floor.value, rate.value = height * HELD, rise(stuck)
        height = np.maximum(height, height * HELD + solved(together) * rate.value)
        floor.value = height * HELD
        room = np.full(n, np.inf)
        for m in np.flatnonzero(~stuck):
            chosen.value = np.eye(n)[m]
            room[m] = solved(by_itself) - height[m]
        newly = ~stuck & (room <= STUCK * np.maximum(height, 1e-3))
        # The solver's arithmetic hides which job is stuck; take the closest.
        if not newly.any():
            newly = np.arange(n) == np.argmin(np.where(rate.value > 0, room, np.inf))
        stuck |= newly
    return height, unit
