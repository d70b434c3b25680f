"""Worker types on which jobs are equally fast: each job keeps to one of them.

Half of the time on either of two such types is worth as much to a job as all of it on one, so a linear program does not
choose. On real GPUs every change of type is a restart. So jobs that do not care exchange their time, until all but one
of them are on one type, and as many as can be where they run already. Nobody's rate changes, no type has more to give.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from policies.problem import Floats, Ints, Problem

AS_FAST = 1e-6  # rates that differ by less are the same
DUST = 1e-9  # of time, or of a GPU


def settled(problem: Problem, shares: Floats, at: Ints, *, by_price: bool = False) -> Floats:
    """Shares by column with the same rates. `at`: the type that each job runs on, -1: none.

    `by_price`: prices count, and nothing is exchanged that would cost more.
    """
    columns = problem.columns
    solo = np.flatnonzero(~columns.is_pair & (columns.first_rate > 0))
    way = columns.gpus[solo], problem.label_code[solo], columns.first[solo]
    by_rate = solo[np.lexsort((columns.first_rate[solo], *way))]
    if not (_same_way(problem, by_rate) & _as_fast(problem, by_rate[:-1], by_rate[1:])).any():
        return shares  # as in most problems
    solo = solo[np.lexsort((columns.worker_type[solo], *way))]
    out = shares.copy()
    row = np.full((len(problem.worker_types), len(problem.columns)), -1, np.int64)
    row[columns.worker_type[solo], np.cumsum(np.append(0, ~_same_way(problem, solo)))] = solo
    for one, other in combinations(range(len(row)), 2):
        both = (row[one] >= 0) & (row[other] >= 0)
        here, there = row[one][both], row[other][both]
        equal = _as_fast(problem, here, there) & (out[here] + out[there] > DUST)
        if equal.any():
            _exchange(problem, out, at, here[equal], there[equal], by_price=by_price)
    return out


def _same_way(problem: Problem, solo: Ints) -> np.ndarray:
    """Whether a column and the next one are of one job, one width and one label: they differ in type."""
    columns, a, b = problem.columns, solo[:-1], solo[1:]
    same = (columns.first[a] == columns.first[b]) & (columns.gpus[a] == columns.gpus[b])
    return np.asarray(same & (problem.label_code[a] == problem.label_code[b]))


def _as_fast(problem: Problem, here: Ints, there: Ints) -> np.ndarray:
    """Whether the rates of these columns are those of the others."""
    rate = problem.columns.first_rate
    return np.asarray(np.abs(rate[here] - rate[there]) <= AS_FAST * rate[here])


def _exchange(problem: Problem, shares: Floats, at: Ints, here: Ints, there: Ints, *, by_price: bool) -> None:
    """Lay the jobs along a line, those that run here first, and cut it where no job is cut in two, if that can be."""
    columns, capacity = problem.columns, problem.capacity
    one, other = int(columns.worker_type[here[0]]), int(columns.worker_type[there[0]])
    job, gpus = columns.first[here], columns.gpus[here]
    time = shares[here] + shares[there]
    width = gpus * time
    used = problem.occupancy @ shares
    now = float(gpus @ shares[here])
    least = max(0.0, float(width.sum()) - (capacity[other] - used[other] + gpus @ shares[there]))
    most = min(float(width.sum()), capacity[one] - used[one] + now)
    price = problem.price_per_gpu_hour
    if by_price and price[one] != price[other]:
        least, most = (least, min(most, now)) if price[one] > price[other] else (max(least, now), most)
    runs_here, runs_there = at[job] == one, at[job] == other
    order = np.lexsort((job, runs_there.astype(int) - runs_here))
    ends = np.cumsum(width[order])
    cut = min(max(now, float(width[runs_here].sum())), float(ends[-1] - width[runs_there].sum()))
    cut = min(max(cut, least), most)
    edges = np.append(0.0, ends)
    edges = edges[(edges >= least - DUST) & (edges <= most + DUST)]
    if edges.size:
        cut = float(edges[np.argmin(np.abs(edges - cut))])
    mine = np.empty_like(time)
    mine[order] = np.clip((cut - (ends - width[order])) / gpus[order], 0.0, time[order])
    mine[mine < DUST] = 0.0
    shares[here], shares[there] = mine, time - mine
