"""The baseline of fairness: every job alone in its own 1/n slice of the cluster."""

from __future__ import annotations

import numpy as np

from policies.engine.quotas import within
from policies.problem import ALONE, Allocation, Problem
from policies.reference import isolated_shares, proportional_rates
from policies.registry import policy, unsolved


@policy("isolated")
def isolated(problem: Problem) -> Allocation:
    """y_mj = (c_j / n) / g_m, each row divided by max(1, Σ_j y_mj)"""
    jobs, P = problem.jobs, proportional_rates(problem)
    solo, columns = problem.solo_column, problem.columns
    row, kind = np.nonzero(solo != ALONE)
    column = solo[row, kind]
    share = np.zeros(len(columns))
    # A column of another width gets the same GPU time: if it is narrower, more of the time, and if it is wider, less.
    on_width = isolated_shares(problem)[row, kind] * jobs.gpus[row] / columns.gpus[column]
    busy = np.bincount(row, on_width, minlength=len(jobs))
    share[column] = on_width / np.maximum(1.0, busy)[row] * jobs.count[row]
    share = within(problem, share)
    rate = (problem.rates @ share) / jobs.count
    worst_off = float((jobs.gpus * rate / P).min())
    return Allocation(policy="isolated", time_share=share, value=worst_off, **unsolved(problem))
