"""AlloX: the schedule with the least average completion time, and the jobs at its beginning, which run now."""

from __future__ import annotations

import numpy as np

from policies.engine.matching import Schedule, shortest_schedule
from policies.engine.quotas import Tally
from policies.engine.solvers import time_left_s
from policies.engine.steps import known_steps
from policies.errors import ProblemError, name_some
from policies.problem import ALONE, Allocation, Problem
from policies.reference import rate_table
from policies.registry import policy, unsolved


@policy("allox", reads=("id",), also=("steps_left", "waited_s"), spread=False)
def allox(problem: Problem, *, alpha: float = 1.0) -> Allocation:
    """minimum-weight matching of jobs to (GPU, position from last), cost position · R_m / T_mj + t_m;
    on each GPU the job in the highest position runs now
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise ProblemError(f"allox: alpha is {alpha}, must be a number from 0 to 1")
    jobs = problem.jobs
    wide = np.flatnonzero(jobs.gpus > 1)
    if wide.size:
        ids = name_some(jobs.ids[row] for row in wide)
        raise ProblemError(f"allox schedules single-GPU jobs only; these ask for more: {ids}")
    grouped = np.flatnonzero(jobs.count > 1)
    if grouped.size:
        raise ProblemError(
            f"allox schedules job by job: '{jobs.ids[grouped[0]]}' stands for {jobs.count[grouped[0]]} jobs, "
            "give each its own row"
        )
    steps = known_steps(problem, "allox")
    gpus = np.floor(problem.capacity).astype(np.int64)
    single = (problem.solo_column != ALONE) & (problem.columns.gpus[problem.solo_column] == 1)
    with np.errstate(divide="ignore"):
        time_s = np.where(single, steps[:, None] / rate_table(problem), np.inf)
    unschedulable = ~(single & (gpus > 0)).any(axis=1)
    # Only the oldest jobs are scheduled: the fraction alpha, but at least as many as there are GPUs.
    by_age = np.lexsort((np.arange(len(jobs)), -jobs.waited_s))
    by_age = by_age[~unschedulable[by_age]]
    chosen = np.sort(by_age[: max(int(gpus.sum()), int(np.ceil(alpha * len(jobs))))])
    schedule = shortest_schedule(time_s[chosen], gpus, lambda: time_left_s() <= 0)
    share = np.zeros(len(problem.columns))
    row, kind = _running_now(schedule, time_s[chosen])
    column = problem.solo_column[chosen[row], kind]
    assert not np.any(column == ALONE)
    # If not all of them may run under the quotas, the oldest do.
    tally = Tally(problem)
    for own in column[np.lexsort((column, -jobs.waited_s[chosen[row]]))].tolist():
        if tally.times(own):
            tally.take(own)
            share[own] = 1.0
    value = schedule.cost + float(jobs.waited_s[chosen].sum())
    notes: tuple[str, ...] = ()
    if unschedulable.any():
        ids = name_some(jobs.ids[row] for row in np.flatnonzero(unschedulable))
        notes = (f"not scheduled, because no type on which one GPU is enough has a whole GPU: {ids}",)
    return Allocation(policy="allox", time_share=share, value=value, notes=notes, **unsolved(problem))


def _running_now(schedule: Schedule, time_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the types of the jobs that run now: on each GPU the job in the highest position.

    The schedule assigns jobs to a position on a type, not to a GPU. Position p is the highest one on as many GPUs as it
    has more jobs than position p + 1; there, the shortest jobs of position p run now.
    """
    rows: list[int] = []
    kinds: list[int] = []
    for kind in np.unique(schedule.kind[schedule.kind >= 0]).tolist():
        jobs_above = 0
        in_type = schedule.kind == kind
        for position in range(int(schedule.position[in_type].max()), 0, -1):
            members = np.flatnonzero(in_type & (schedule.position == position))
            members = members[np.argsort(time_s[members, kind], kind="stable")]
            rows += members[: len(members) - jobs_above].tolist()
            kinds += [kind] * (len(members) - jobs_above)
            jobs_above = len(members)
    return np.array(rows, dtype=np.int64), np.array(kinds, dtype=np.int64)
