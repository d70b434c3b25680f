"""Losses of nodes lower the rates of columns: work that a job will have to repeat, on average, is no progress."""

from __future__ import annotations

import numpy as np

from policies.problem import Floats
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job
from scheduler.model.measured import failure_s, pool_key
from scheduler.model.node_losses import HOUR_S

# Factors are rounded to parts of this size, so that jobs of one kind mostly keep equal rates.
PART = 1 / 128
# No factor is smaller, so that a job keeps a way to run whatever it has measured.
FACTOR_MIN = PART


def factor(state: SchedulerState, job: Job, worker_type: str, gpus: int) -> float:
    """Return the part of a column's rate that remains after the losses of nodes of its type: 1 if there were none."""
    losses = state.losses.get(worker_type)
    if losses is None or not losses.losses:
        return 1.0
    lost_s = state.measured.time_s(job.id, pool_key(job, worker_type, gpus), failure_s)
    remaining = 1.0 - losses.per_gpu_hour * gpus * (lost_s or 0.0) / HOUR_S
    return float(max(round(remaining / PART) * PART, FACTOR_MIN))


def discounted(
    state: SchedulerState,
    jobs: list[Job],
    first: np.ndarray,
    worker_type: list[str],
    gpus: np.ndarray,
    rate: Floats,
) -> Floats:
    """Return the rates of columns with the losses of nodes taken off; all arrays are by column."""
    book = state.measured
    if not (book.jobs or book.pools) or not any(losses.losses for losses in state.losses.values()):
        return rate
    columns = zip(first.tolist(), worker_type, gpus.tolist(), strict=True)
    factors = [factor(state, jobs[row], kind, width) for row, kind, width in columns]
    return np.asarray(rate * np.array(factors, float))
