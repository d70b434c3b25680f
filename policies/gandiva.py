"""Gandiva's method: random pairs, kept as long as they do more together than by taking turns."""

from __future__ import annotations

import numpy as np

from policies.engine.chance import draw
from policies.engine.quotas import within
from policies.errors import ProblemError
from policies.problem import Allocation, Bools, Columns, Floats, Ints, Problem
from policies.reference import best_rates, rate_table
from policies.registry import policy, unsolved


@policy("gandiva", reads=("id",), spread=False, pairs=True)
def gandiva(problem: Problem) -> Allocation:
    """seeded random pairs of equal width when over-subscribed;
    each of the K combinations gets c_j / (K g_k) of every type
    """
    jobs = problem.jobs
    grouped = np.flatnonzero(jobs.count > 1)
    if grouped.size:
        raise ProblemError(
            f"gandiva draws pairs of jobs: '{jobs.ids[grouped[0]]}' stands for {jobs.count[grouped[0]]} jobs, "
            "give each its own row"
        )
    partner = np.full(len(jobs), -1)
    if jobs.gpus.sum() > problem.capacity.sum():
        for a, b in zip(*_random_pairs(problem), strict=True):
            partner[a], partner[b] = b, a
        partner = _without_missing_pairs(problem, partner)
    while True:
        share, does_better = _slices(problem, partner)
        if does_better.all():
            break
        partner = np.where(does_better, partner, -1)
    rate = problem.rates @ share
    value = float((jobs.gpus * rate / best_rates(problem)).sum())
    return Allocation(policy="gandiva", time_share=share, value=value, **unsolved(problem))


def _random_pairs(problem: Problem) -> tuple[list[int], list[int]]:
    """Return random pairs of jobs of the same width, as two lists of rows."""
    order = np.lexsort((draw(problem.seed, problem.jobs.ids)[:, 0], problem.jobs.gpus))
    width = problem.jobs.gpus[order].tolist()
    first, second, index = [], [], 0
    while index + 1 < len(width):
        if width[index] == width[index + 1]:
            first.append(int(order[index]))
            second.append(int(order[index + 1]))
            index += 1
        index += 1
    return first, second


def _without_missing_pairs(problem: Problem, partner: Ints) -> Ints:
    """Return the partner of each job, or -1 if the pair has no column."""
    columns = problem.columns
    drawn = columns.is_pair & (partner[columns.first] == columns.second)
    has_column = np.zeros(len(partner), dtype=bool)
    has_column[columns.first[drawn]] = has_column[columns.second[drawn]] = True
    return np.where(has_column, partner, -1)


def _slices(problem: Problem, partner: Ints) -> tuple[Floats, Bools]:
    """Return the share of each column, and a mask of the jobs whose combination does better than its jobs apart."""
    columns, n = problem.columns, len(partner)
    # Pairs, and jobs without a partner.
    combinations = n - int((partner >= 0).sum()) // 2
    alone = np.zeros(len(columns), dtype=bool)
    alone[problem.solo_column[problem.solo_column >= 0]] = True
    runs = np.where(
        columns.is_pair, partner[columns.first] == columns.second, alone & (partner[columns.first] < 0)
    )
    share = np.where(runs, problem.capacity[columns.worker_type] / (combinations * columns.gpus), 0.0)
    time_of_job = np.maximum(1.0, problem.membership @ share)
    share = share / time_of_job[columns.first]
    return within(problem, share), _does_better(problem, columns, share, partner)


def _does_better(problem: Problem, columns: Columns, share: Floats, partner: Ints) -> Bools:
    """Return a mask of the jobs that are alone, or do at least as much with their partner as by taking turns."""
    table, n = rate_table(problem), len(partner)
    pair = np.flatnonzero(columns.is_pair & (share > 0))
    a, b, kind = columns.first[pair], columns.second[pair], columns.worker_type[pair]
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = columns.first_rate[pair] / table[a, kind] + columns.second_rate[pair] / table[b, kind]
    work = np.bincount(a, share[pair] * worth, minlength=n) + np.bincount(b, share[pair] * worth, minlength=n)
    time = np.bincount(a, share[pair], minlength=n) + np.bincount(b, share[pair], minlength=n)
    return np.asarray((partner < 0) | (work >= time))
