"""Give a job that is equally fast on two worker types all of its time on one of them.

To such a job, half of the time on each type is worth as much as all of the time on one, so a linear program has no
reason to choose. On real GPUs every change of type costs a restart. So such jobs exchange their time until at most one
of them has time on both types, and as many as possible stay on the type where they run. No job's rate changes, and no
type is used beyond its capacity.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from policies.engine.cpus import cpu_rules
from policies.engine.quotas import add_as_exceeded, exceeded
from policies.problem import Floats, Ints, Problem

# Rates whose relative difference is at most this are equal.
AS_FAST = 1e-6
# Less time, or a smaller fraction of a GPU, counts as zero.
DUST = 1e-9


def keep_types(problem: Problem, shares: Floats, current: Ints, *, by_price: bool = False) -> Floats:
    """Return shares by column that give the same rates with fewer changes of type.

    `current` is the type on which each job runs, or -1. With `by_price`, no exchange may raise the cost.
    """
    kept = exceeded(problem, shares)
    return add_as_exceeded(
        problem,
        lambda relaxed: _keep_types(relaxed, shares, current, by_price=by_price),
        lambda result: np.setdiff1d(exceeded(problem, result), kept),
    )


def _keep_types(problem: Problem, shares: Floats, current: Ints, *, by_price: bool) -> Floats:
    columns = problem.columns
    solo = np.flatnonzero(~columns.is_pair & (columns.first_rate > 0))
    way = columns.gpus[solo], problem.label_code[solo], columns.first[solo]
    by_rate = solo[np.lexsort((columns.first_rate[solo], *way))]
    if not (_same_way(problem, by_rate) & _as_fast(problem, by_rate[:-1], by_rate[1:])).any():
        # Most problems have no such jobs.
        return shares
    solo = solo[np.lexsort((columns.worker_type[solo], *way))]
    out = shares.copy()
    under_quota = np.zeros(len(problem.jobs), dtype=bool)
    under_quota[problem.quotas.job] = True
    scarce_cpus = np.zeros(len(columns), dtype=bool)
    scarce_cpus[cpu_rules(problem)[0].column] = True
    # For each type, the column of each way to run a job; -1 if there is none.
    row = np.full((len(problem.worker_types), len(problem.columns)), -1, np.int64)
    row[columns.worker_type[solo], np.cumsum(np.append(0, ~_same_way(problem, solo)))] = solo
    for a, b in combinations(range(len(row)), 2):
        both = (row[a] >= 0) & (row[b] >= 0)
        on_a, on_b = row[a][both], row[b][both]
        equal = _as_fast(problem, on_a, on_b) & (out[on_a] + out[on_b] > DUST)
        # Jobs under a quota are left alone, and columns whose CPUs can run out.
        equal &= ~(under_quota[columns.first[on_a]] | scarce_cpus[on_a] | scarce_cpus[on_b])
        if equal.any():
            _exchange(problem, out, current, on_a[equal], on_b[equal], by_price=by_price)
    return out


def _same_way(problem: Problem, solo: Ints) -> np.ndarray:
    """Return whether each column and the next have the same job, width and label, and so differ only in type."""
    columns, a, b = problem.columns, solo[:-1], solo[1:]
    same = (columns.first[a] == columns.first[b]) & (columns.gpus[a] == columns.gpus[b])
    return np.asarray(same & (problem.label_code[a] == problem.label_code[b]))


def _as_fast(problem: Problem, on_a: Ints, on_b: Ints) -> np.ndarray:
    """Return whether the two columns of each pair have equal rates."""
    rate = problem.columns.first_rate
    return np.asarray(np.abs(rate[on_a] - rate[on_b]) <= AS_FAST * rate[on_a])


def _exchange(
    problem: Problem, shares: Floats, current: Ints, on_a: Ints, on_b: Ints, *, by_price: bool
) -> None:
    """Divide the time of jobs between their columns on type a and their columns on type b, in place.

    The jobs are sorted, first those that run on type a now, last those that run on type b, and cut in two: jobs before
    the cut get type a, the others type b. The cut is between two jobs unless the capacities (or the prices, with
    `by_price`) require that it divides a job.
    """
    columns, capacity = problem.columns, problem.capacity
    a, b = int(columns.worker_type[on_a[0]]), int(columns.worker_type[on_b[0]])
    job, gpus = columns.first[on_a], columns.gpus[on_a]
    time = shares[on_a] + shares[on_b]
    width = gpus * time
    used = problem.occupancy @ shares
    # The GPU time of these jobs on type a: before the exchange, and its bounds.
    before = float(gpus @ shares[on_a])
    low = max(0.0, float(width.sum()) - (capacity[b] - used[b] + gpus @ shares[on_b]))
    high = min(float(width.sum()), capacity[a] - used[a] + before)
    price = problem.price_per_gpu_hour
    if by_price and price[a] != price[b]:
        low, high = (low, min(high, before)) if price[a] > price[b] else (max(low, before), high)
    runs_on_a, runs_on_b = current[job] == a, current[job] == b
    order = np.lexsort((job, runs_on_b.astype(int) - runs_on_a))
    ends = np.cumsum(width[order])
    cut = min(max(before, float(width[runs_on_a].sum())), float(ends[-1] - width[runs_on_b].sum()))
    cut = min(max(cut, low), high)
    edges = np.append(0.0, ends)
    edges = edges[(edges >= low - DUST) & (edges <= high + DUST)]
    if edges.size:
        cut = float(edges[np.argmin(np.abs(edges - cut))])
    time_on_a = np.empty_like(time)
    time_on_a[order] = np.clip((cut - (ends - width[order])) / gpus[order], 0.0, time[order])
    time_on_a[time_on_a < DUST] = 0.0
    shares[on_a], shares[on_b] = time_on_a, time - time_on_a
