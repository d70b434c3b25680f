"""Questions about all the orders of an agent: which can start, and when something is due."""

from __future__ import annotations

import math
from collections.abc import Iterable

from worker_agent.orders import Order, Phase, Run

WAITING = Phase.WAITING


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


def first_times(runs: Iterable[Run]) -> tuple[float, float, float]:
    """The first end of a lease that may be renewed, the first of what else is due, and when a job was last told of.

    What is due is the end of a lease that will not be renewed, or the next step of one that is stopping. Each is
    inf where there is none.
    """
    end_s = other_s = said_s = math.inf
    for run in runs:
        if run.wanted and not run.last:
            end_s = min(end_s, run.ends_s)
        else:
            other_s = min(other_s, run.ends_s if run.wanted else run.due_s)
        said_s = min(said_s, run.said_s)
    return end_s, other_s, said_s
