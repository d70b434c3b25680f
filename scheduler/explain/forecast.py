"""Forecasts of when jobs end and when rounds begin: estimates from current rates, not promises."""

from __future__ import annotations

import math

from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.problem import estimate
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job

# Times that are more rounds ahead than this are not moved to a boundary, because they are only rough.
ROUNDS_MAX = 1e12


def boundary_s(state: SchedulerState, now_s: float, at_s: float = 0.0) -> float:
    """Return the first boundary not before now or `at_s`; if no round is running, the later of now and `at_s`."""
    ends_s, round_s = state.round.ends_s, state.settings.round_s
    if ends_s <= now_s:
        return max(now_s, at_s)
    if at_s - ends_s >= ROUNDS_MAX * round_s:
        return at_s
    return ends_s + max(math.ceil((at_s - ends_s) / round_s - 1e-9), 0) * round_s


def ends_s(state: SchedulerState, job: Job, now_s: float) -> float | None:
    """Return when a running job reaches its last step or its time limit if it keeps running; None if unknown."""
    holding = state.leases.get(job.lease or "")
    if holding is None:
        return None
    times = []
    if job.spec.time_limit_s is not None:
        ran_s = 0.0 if holding.started_s is None else now_s - holding.started_s
        times.append(now_s + max(job.spec.time_limit_s - job.run_s - ran_s, 0.0))
    rate = rate_of(state, job.spec, holding.bundle.worker_type, holding.bundle.gpus)[0]
    if job.spec.steps is not None and rate > 0:
        steps, _ = estimate(state, job, now_s)
        times.append(now_s + max(job.spec.steps - steps, 0.0) / rate)
    return min(times, default=None)


def done_s(state: SchedulerState, job: Job, now_s: float) -> float | None:
    """Return when a job will end if it gets its share of the time; None if unknown."""
    table = state.shares
    own_row = table.job_row.get(job.id)
    steps, _ = estimate(state, job, now_s)
    mean_rate = 0.0
    if own_row is not None:
        for row in (table.first == own_row).nonzero()[0].tolist():
            bundle = table.bundles[row]
            rate = rate_of(state, job.spec, bundle.worker_type, bundle.gpus)[0]
            mean_rate += float(table.share[row]) * rate
    if job.spec.steps is not None and mean_rate > 0 and state.eligible(job, now_s):
        return now_s + max(job.spec.steps - steps, 0.0) / mean_rate
    return ends_s(state, job, now_s)
