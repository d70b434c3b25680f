"""How wide an elastic job runs: as evenly as its share allows.

Where a job is as fast per GPU at every width, two GPUs all of the time, and four of them half of it, are the same to a
linear program, and an interior-point method answers with a bit of each. On real GPUs every change of width is a
restart, and the widest of them push others aside. So the GPU time that a job has on a type is spread over all of its
time there and, where it has idle time, a part of that, at the one or two widths next to the mean.
"""

from __future__ import annotations

import numpy as np

from policies.problem import Floats, Ints, Problem

# A rate of this part of another counts as no slower.
AS_FAST = 1.0 - 1e-9


def evened(problem: Problem, usable: Ints, shares: Floats) -> Floats:
    """Return shares with the same GPU time of each job on each type, and no lower rate, at widths as even as can be."""
    column, start = _elastic(problem, usable)
    if not len(start):
        return shares
    share, gpus = shares[column], problem.columns.gpus[column]
    rate, job = problem.columns.first_rate[column], problem.columns.first[column[start]]
    time, gpu_time, reached = (
        np.add.reduceat(share * factor, start) for factor in (np.ones(len(gpus)), gpus, rate)
    )
    idle = np.maximum(problem.jobs.count - problem.membership @ shares, 0.0)[job]
    together = np.bincount(job, time, len(problem.jobs))[job]
    had = time > 0
    longer = np.divide(idle * time, together, out=np.zeros_like(time), where=had)
    # No job can be narrower than its narrowest column.
    longest = np.minimum(time + longer, gpu_time / gpus[start])
    mean = np.divide(gpu_time, longest, out=np.zeros_like(time), where=had)
    size = np.diff(start, append=len(column))
    even = np.repeat(longest, size) * _next_to(np.repeat(mean, size), gpus, start)
    better = had & (np.add.reduceat(even * rate, start) >= reached * AS_FAST)
    out = shares.copy()
    out[column] = np.where(np.repeat(better, size), even, share)
    return out


def _elastic(problem: Problem, usable: Ints) -> tuple[Ints, Ints]:
    """Return columns of one job each that differ in width only, by width, and where those of the next job begin."""
    columns = problem.columns
    if problem.in_order:
        of_one = (columns.first[1:] == columns.first[:-1]) & (
            columns.worker_type[1:] == columns.worker_type[:-1]
        )
        if not of_one.any():
            # Most problems have no elastic jobs.
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
    solo = usable[~columns.is_pair[usable]]
    keys = columns.gpus[solo], problem.label_code[solo], columns.worker_type[solo], columns.first[solo]
    order = np.lexsort(keys)
    same = np.ones(max(len(solo) - 1, 0), dtype=np.bool_)
    for key in keys[1:]:
        same &= key[order[1:]] == key[order[:-1]]
    first = np.flatnonzero(np.concatenate(([True], ~same)))[: len(solo)]
    size = np.diff(first, append=len(solo))
    several = size > 1
    return solo[order[np.repeat(several, size)]], np.cumsum(size[several]) - size[several]


def _next_to(mean: Floats, gpus: Ints, start: Ints) -> Floats:
    """Return the part of its time in which a job of this mean width has each width: only the two next to the mean."""
    ends = np.append(start[1:], len(gpus)) - 1
    step = np.diff(gpus, append=gpus[-1:]).astype(float)
    step[ends] = 1.0
    above = (np.roll(gpus, -1) - mean) / step
    above[ends] = 1.0
    below = (mean - np.roll(gpus, 1)) / np.roll(step, 1)
    below[start] = 1.0
    return np.asarray(np.clip(np.minimum(above, below), 0.0, 1.0))
