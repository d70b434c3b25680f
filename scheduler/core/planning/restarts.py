"""The cost of a restart: as the job states it, else as it was measured, else the usual one of the settings.

A stay on GPUs costs a start and, when it ends, a save; so it does not matter here how the stay before it ended. What a
failure costs, after which nothing was saved, is in `failures.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle
from scheduler.model.measured import pool_key, restart_s
from scheduler.rounds.inputs import Floats


def restart_costs_s(state: SchedulerState, bundles: Sequence[Bundle], first: Sequence[Job]) -> Floats:
    """Return the time that each column loses when it starts or moves. `first`: the first job of each."""
    usual_s = state.settings.restart_cost_s
    costs = [job.spec.restart_cost_s for job in first]
    if state.measured.jobs or state.measured.pools:
        costs = [
            _measured_s(state, job, bundle) if cost is None else cost
            for cost, job, bundle in zip(costs, first, bundles, strict=True)
        ]
    costs_s = np.array([usual_s if cost is None else cost for cost in costs], float)
    return np.asarray(np.minimum(costs_s, bounds.TIME_S.most))


def _measured_s(state: SchedulerState, job: Job, bundle: Bundle) -> float | None:
    return state.measured.time_s(job.id, pool_key(job, bundle.worker_type, bundle.gpus), restart_s)
