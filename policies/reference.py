"""The rates that fairness is measured against: proportional, isolated, best.

They are rates of one job, even if a row represents several jobs.
"""

from __future__ import annotations

import numpy as np

from policies.problem import Floats, Problem


def rate_table(problem: Problem) -> Floats:
    """Return [n × t] T_mj: the rate of the whole job m on type j at its requested width, 0 if it cannot run there."""
    return problem.solo_rate


def proportional_rates(problem: Problem) -> Floats:
    """Return P_m = Σ_j T_mj c_j / C: the rate of a job with time on each type in proportion to its GPUs."""
    total = float(problem.capacity.sum())
    return rate_table(problem) @ problem.capacity / total if total > 0 else np.zeros(len(problem.jobs))


def isolated_shares(problem: Problem) -> Floats:
    """Return [n × t] y_mj: the share of time on each type of a job in a 1/n slice of the cluster."""
    jobs = problem.jobs
    total = max(int(jobs.count.sum()), 1)
    shares = (problem.capacity[None, :] / total) / jobs.gpus[:, None]
    return np.asarray(shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True)))


def isolated_rates(problem: Problem) -> Floats:
    """Return I_m = Σ_j T_mj y_mj: the rate of a job in a 1/n slice of the cluster."""
    return np.asarray((rate_table(problem) * isolated_shares(problem)).sum(axis=1))


def best_rates(problem: Problem) -> Floats:
    """Return T_m^best: the rate on the fastest type that has any GPUs."""
    return np.asarray(np.where(problem.capacity > 0, rate_table(problem), 0.0).max(axis=1, initial=0.0))
