"""First come, first served: no job overtakes another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.engine.chance import draw
from policies.engine.quotas import Tally
from policies.errors import name_some
from policies.problem import ALONE, Allocation, Floats, Ints, Problem
from policies.reference import rate_table
from policies.registry import policy, unsolved


@policy("fifo", reads=("id",), also=("waited_s",), spread=False)
def fifo(problem: Problem) -> Allocation:
    """first come, first served: each job takes the fastest type with room, all of the time; no job overtakes another

    Only jobs that are stopped by a quota are overtaken, by jobs that are not under it. The value is the number of jobs
    that run.
    """
    solo, columns = problem.solo_column, problem.columns
    free = problem.capacity.copy()
    share = np.zeros(len(columns))
    # Rows are sorted by id, so ties go by id.
    queue = np.lexsort((np.arange(len(problem.jobs)), -problem.jobs.waited_s))
    fits = (solo != ALONE) & (columns.gpus[solo] <= problem.capacity)
    too_wide = ~fits.any(axis=1)
    queue = queue[~too_wide[queue]]
    preference = _fastest_first(problem, fits)
    tally = Tally(problem)
    # Quotas that stopped a job: later jobs under them wait as well.
    closed: set[int] = set()
    running = 0
    for index, row in enumerate(queue.tolist()):
        choices = [(kind, int(solo[row, kind])) for kind in preference[row]]
        quotas = tally.of_any(column for _, column in choices)
        if not closed.isdisjoint(quotas):
            continue
        members = int(problem.jobs.count[row])
        waiting = _start(members, choices, columns.gpus, tally, free, share)
        running += members - waiting
        if waiting and any(free[kind] >= columns.gpus[column] for kind, column in choices):
            closed |= quotas
        elif waiting:
            running += _pack(problem, queue[index:], share, tally, closed)
            break
    answer = Allocation(policy="fifo", time_share=share, value=float(running), **unsolved(problem))
    answer = replace(answer, backfill=np.zeros(len(columns), dtype=bool))
    if too_wide.any():
        ids = name_some(problem.jobs.ids[row] for row in np.flatnonzero(too_wide))
        note = f"not scheduled, being wider than every worker type on which they can run: {ids}"
        answer = replace(answer, notes=(note,))
    return answer


def _fastest_first(problem: Problem, fits: np.ndarray) -> list[list[int]]:
    """Return the types of each job, fastest first.

    A random draw for each job orders equally fast types: otherwise, under +blind, all jobs would prefer the first type.
    """
    rate = rate_table(problem)
    order = np.lexsort((draw(problem.seed, problem.jobs.ids, rate.shape[1]), -rate), axis=1)
    return [
        [kind for kind in kinds if ok[kind]] for kinds, ok in zip(order.tolist(), fits.tolist(), strict=True)
    ]


def _start(
    members: int, choices: list[tuple[int, int]], gpus: Ints, tally: Tally, free: Floats, share: Floats
) -> int:
    """Start as many jobs of a row as fit, in these types and columns; return how many of its jobs still wait."""
    for kind, column in choices:
        starts = tally.times(column, min(members, int(free[kind] // gpus[column])))
        if starts:
            share[column] = starts
            free[kind] -= starts * gpus[column]
            tally.take(column, starts)
            members -= starts
        if not members:
            break
    return members


def _pack(problem: Problem, waiting: Ints, share: Floats, tally: Tally, closed: set[int]) -> int:
    """Pack waiting jobs in order, each with the running job that makes the fastest pair; return their number.

    Stop at the first job without a partner, so that no job overtakes another. `closed`: quotas that stopped a job.
    """
    columns, table = problem.columns, rate_table(problem)
    pairs = np.flatnonzero(columns.is_pair)
    if not pairs.size or (problem.jobs.count[waiting] > 1).any():
        return 0
    a, b, kind = columns.first[pairs], columns.second[pairs], columns.worker_type[pairs]
    together = columns.first_rate[pairs] / table[a, kind] + columns.second_rate[pairs] / table[b, kind]
    packed = 0
    for row in waiting.tolist():
        its_pairs = np.flatnonzero((a == row) | (b == row))
        host = problem.solo_column[np.where(a == row, b, a)[its_pairs], kind[its_pairs]]
        can_pack = (
            (share[host] == 1.0) & (columns.gpus[host] == columns.gpus[pairs[its_pairs]]) & (host != ALONE)
        )
        if not can_pack.any():
            break
        quotas = tally.of_any(problem.solo_column[row])
        can_pack &= np.array(
            [
                closed.isdisjoint(quotas) and tally.times(pair, instead_of=alone) > 0
                for pair, alone in zip(pairs[its_pairs].tolist(), host.tolist(), strict=True)
            ]
        )
        if not can_pack.any():
            closed |= quotas
            continue
        best = its_pairs[can_pack][np.argmax(together[its_pairs[can_pack]])]
        partner = b[best] if a[best] == row else a[best]
        alone = int(problem.solo_column[partner, kind[best]])
        share[alone] = 0.0
        share[pairs[best]] = 1.0
        tally.take(alone, -1)
        tally.take(int(pairs[best]))
        packed += 1
    return packed
