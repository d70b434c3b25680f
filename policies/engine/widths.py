"""Choose the widths of elastic jobs, as even as their shares allow.

For a job that is as fast per GPU at every width, two GPUs all of the time and four GPUs half of the time are worth the
same to a linear program, so an interior-point method answers with a mixture of all widths. On real GPUs every change
of width costs a restart, and wide turns push other jobs aside. So a job's GPU time on a type is spread over its time
on that type, and over its idle time if it has any, at the one or two widths next to the mean.
"""

from __future__ import annotations

import numpy as np

from policies.problem import JOBS, Floats, Ints, Problem

# A rate of at least this fraction of another rate counts as equal.
AS_FAST = 1.0 - 1e-9


def even_widths(problem: Problem, usable: Ints, shares: Floats) -> Floats:
    """Return shares with the same GPU time and no lower rate for each job and type, at widths as even as possible."""
    column, start = _elastic(problem, usable)
    if not len(start):
        return shares
    share, gpus = shares[column], problem.columns.gpus[column]
    rate, job = problem.columns.first_rate[column], problem.columns.first[column[start]]
    old_time, gpu_time, old_rate = (
        np.add.reduceat(share * factor, start) for factor in (np.ones(len(gpus)), gpus, rate)
    )
    idle_time = np.maximum(problem.jobs.count - problem.membership @ shares, 0.0)
    # More time of these jobs might exceed their quota on running jobs.
    idle_time[problem.quotas.under(JOBS)] = 0.0
    idle = idle_time[job]
    time_of_job = np.bincount(job, old_time, len(problem.jobs))[job]
    is_used = old_time > 0
    extra_time = np.divide(idle * old_time, time_of_job, out=np.zeros_like(old_time), where=is_used)
    # No job can be narrower than its narrowest column.
    new_time = np.minimum(old_time + extra_time, gpu_time / gpus[start])
    mean = np.divide(gpu_time, new_time, out=np.zeros_like(old_time), where=is_used)
    size = np.diff(start, append=len(column))
    even_share = np.repeat(new_time, size) * _mix_of_widths(np.repeat(mean, size), gpus, start)
    use_even = is_used & (np.add.reduceat(even_share * rate, start) >= old_rate * AS_FAST)
    out = shares.copy()
    out[column] = np.where(np.repeat(use_even, size), even_share, share)
    return out


def _elastic(problem: Problem, usable: Ints) -> tuple[Ints, Ints]:
    """Return the columns of elastic jobs by job, type and width, and the index at which each job and type begins.

    Only columns of one job are returned, and only if the job has several on that type that differ only in their width,
    and in CPUs in proportion to it.
    """
    columns = problem.columns
    if problem.in_order:
        same_job_and_type = (columns.first[1:] == columns.first[:-1]) & (
            columns.worker_type[1:] == columns.worker_type[:-1]
        )
        if not same_job_and_type.any():
            # Most problems have no elastic jobs.
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
    solo = usable[~columns.is_pair[usable]]
    # With the same CPUs per GPU, the same GPU time at another width needs the same time of CPUs.
    per_gpu = columns.cpus[solo] / columns.gpus[solo]
    keys = (
        columns.gpus[solo],
        per_gpu,
        problem.label_code[solo],
        columns.worker_type[solo],
        columns.first[solo],
    )
    order = np.lexsort(keys)
    same = np.ones(max(len(solo) - 1, 0), dtype=np.bool_)
    for key in keys[1:]:
        same &= key[order[1:]] == key[order[:-1]]
    first = np.flatnonzero(np.concatenate(([True], ~same)))[: len(solo)]
    size = np.diff(first, append=len(solo))
    several = size > 1
    return solo[order[np.repeat(several, size)]], np.cumsum(size[several]) - size[several]


def _mix_of_widths(mean: Floats, gpus: Ints, start: Ints) -> Floats:
    """Return the fraction of a job's time at each width: only the two widths next to the mean are used."""
    ends = np.append(start[1:], len(gpus)) - 1
    step = np.diff(gpus, append=gpus[-1:]).astype(float)
    step[ends] = 1.0
    above = (np.roll(gpus, -1) - mean) / step
    above[ends] = 1.0
    below = (mean - np.roll(gpus, 1)) / np.roll(step, 1)
    below[start] = 1.0
    return np.asarray(np.clip(np.minimum(above, below), 0.0, 1.0))
