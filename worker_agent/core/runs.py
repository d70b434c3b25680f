"""Calculations about the runs of an agent: whether an order may start, and the next due times."""

from __future__ import annotations

import math
from collections.abc import Iterable

from worker_agent.core.messages import RUNNING, STARTING, WAITING, Held, Order, ProcessFound, Progressed, Run


def adopted_run(now_s: float, event: ProcessFound) -> Run:
    """Return a run for processes that an earlier agent started."""
    started_s = math.inf if event.ran_s is None else now_s - event.ran_s
    return Run(
        order=event.order,
        ends_s=event.order.ends_s,
        phase=STARTING if event.ran_s is None else RUNNING,
        started_s=started_s,
        reported_s=max(now_s, started_s),
        steps=event.steps,
        saved=event.saved,
        stepping_s=event.stepping_s,
    )


def run_of(order: Order) -> Run:
    """Return a run for a new order."""
    return Run(order=order, ends_s=order.ends_s, last=order.last, extra_save_s=order.extra_save_s)


def advance(run: Run, event: Progressed, now_s: float) -> bool:
    """Enter progress in a run; return whether it is the first progress with a step."""
    is_first = not run.stepping_s and event.stepping_s > 0.0
    run.changed = True
    run.steps = max(run.steps, event.steps)
    run.saved = max(run.saved, event.saved)
    run.stepping_s = max(run.stepping_s, event.stepping_s)
    if is_first:
        run.start_s = now_s - run.stepping_s - run.started_s
    return is_first


def held_by(runs: Iterable[Run], now_s: float) -> list[Held]:
    """Return what a hello says of the runs that have processes."""
    return [
        Held(run.order.lease, run.steps, max(0.0, now_s - run.started_s))
        for run in runs
        if run.phase is not WAITING
    ]


def may_start(order: Order, runs: Iterable[Run]) -> bool:
    """Return whether the GPUs of an order are free, or taken only by the other job of its packed pair."""
    partners = 0
    for run in runs:
        if run.phase is WAITING:
            continue
        other = run.order
        if other.job == order.job:
            return False
        if other.gpus == order.gpus or not set(other.gpus).isdisjoint(order.gpus):
            partners += 1
            if not run.in_set or sorted(other.gpus) != sorted(order.gpus):
                return False
    return partners < 2


def first_times(runs: Iterable[Run], reported_s: float) -> tuple[float, float, float]:
    """Return the first end of a lease that may be renewed, the first other due time, and the time of the oldest report.

    Other due times are the ends of leases that will not be renewed, and the times at which stopping runs are next
    signalled or killed. The first two times are inf if there are none. `reported_s`: when the exits were last reported.
    """
    end_s = other_s = math.inf
    for run in runs:
        if not run.in_set:
            other_s = min(other_s, run.due_s)
        elif run.last:
            other_s = min(other_s, run.ends_s)
        elif run.ends_s < end_s:
            end_s = run.ends_s
        reported_s = run.reported_s if run.reported_s < reported_s else reported_s
    return end_s, other_s, reported_s
