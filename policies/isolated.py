"""The baseline of fairness: every job alone in its own 1/n slice of the cluster."""

from __future__ import annotations

import numpy as np

from policies.problem import Allocation, Floats, Problem
from policies.reference import isolated_shares, proportional_rates, rate_table
from policies.registry import policy, unsolved


@policy("isolated")
def isolated(problem: Problem) -> Allocation:
    """y_mj = (c_j / n) / g_m, each row divided by max(1, Σ_j y_mj)"""
    jobs, P = problem.jobs, proportional_rates(problem)
    share = _on_columns(problem, isolated_shares(problem))
    rate = (problem.rates @ share) / jobs.count
    worst = float((jobs.gpus * rate / P).min())
    return Allocation(policy="isolated", time_share=share, value=worst, **unsolved(problem))


def _on_columns(problem: Problem, shares: Floats) -> Floats:
    """Each job's share of a type, given to the column that says how fast it is there."""
    columns, jobs = problem.columns, problem.jobs
    on_time_share = np.zeros(len(columns))
    solo = np.flatnonzero(~columns.is_pair)
    job, kind = columns.first[solo], columns.worker_type[solo]
    asked = jobs.gpus[job]
    told = columns.first_rate[solo] * asked / columns.gpus[solo] == rate_table(problem)[job, kind]
    told &= (columns.gpus[solo] == asked) | ~np.isin(job * shares.shape[1] + kind, (job * shares.shape[1] + kind)[columns.gpus[solo] == asked])
    _, chosen = np.unique((job * shares.shape[1] + kind)[told], return_index=True)
    column = solo[told][chosen]
    row, kind = columns.first[column], columns.worker_type[column]
    on_time_share[column] = np.minimum(1.0, shares[row, kind] * jobs.gpus[row] / columns.gpus[column]) * jobs.count[row]
    return on_time_share
