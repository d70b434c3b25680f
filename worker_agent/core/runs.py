"""What an agent knows of its orders: how one begins that was found, which can start, when something is due."""

from __future__ import annotations

import math
from collections.abc import Iterable

from worker_agent.core.messages import RUNNING, STARTING, WAITING, Order, ProcessFound, Run


def run_found(now_s: float, found: ProcessFound) -> Run:
    """An order whose processes were there before the agent."""
    started_s = math.inf if found.ran_s is None else now_s - found.ran_s
    return Run(
        order=found.order,
        ends_s=found.order.ends_s,
        phase=STARTING if found.ran_s is None else RUNNING,
        started_s=started_s,
        said_s=max(now_s, started_s),
        steps=found.steps,
        saved=found.saved,
        stepping_s=found.stepping_s,
    )


def may_start(order: Order, runs: Iterable[Run]) -> bool:
    """Whether the GPUs are free, or taken by nobody but the other half of a packed pair."""
    partners = 0
    for run in runs:
        if run.phase is WAITING:
            continue
        other = run.order
        if other.job == order.job:
            return False
        if other.gpus == order.gpus or not set(other.gpus).isdisjoint(order.gpus):
            partners += 1
            if not run.wanted or sorted(other.gpus) != sorted(order.gpus):
                return False
    return partners < 2


def first_times(runs: Iterable[Run], said_s: float) -> tuple[float, float, float]:
    """The first end of a lease that may be renewed, the first of what else is due, and when a job was last told of.

    What is due is the end of a lease that will not be renewed, or the next step of one that is stopping; both are
    inf where there is none. `said_s`: something else was last told of then.
    """
    end_s = other_s = math.inf
    for run in runs:
        if not run.wanted:
            other_s = min(other_s, run.due_s)
        elif run.last:
            other_s = min(other_s, run.ends_s)
        elif run.ends_s < end_s:
            end_s = run.ends_s
        said_s = run.said_s if run.said_s < said_s else said_s
    return end_s, other_s, said_s
