"""A run in twenty figures, as `--json` prints them. A figure without a value is None, never NaN.

An interrupted run has one more figure, INTERRUPTED. `restart_h` and `cost_usd` are totals of the measured jobs.
`utilization` covers the time from the submission of the first measured job to the end of the last measured job.
`unfair_fraction` is the fraction of completed jobs with ρ > 1.05.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import JobState
from scheduler.sim.figures.job_table import HOUR_S
from scheduler.sim.figures.metrics import GpuTotals, Metrics

UNFAIR_RHO = 1.05
KEYS = (
    *("jobs", "completed", "mean_jct_h", "median_jct_h", "p99_jct_h", "mean_queue_h", "makespan_h"),
    *("utilization", "cost_usd", "deadline_misses", "max_rho", "mean_rho", "unfair_fraction"),
    *("preemptions_per_job", "restart_h", "rounds", "wall_s", "policy", "cluster", "seed"),
)

INTERRUPTED = "interrupted"


def summarise(
    metrics: Metrics,
    *,
    wall_s: float | None = None,
    policy: str | None = None,
    cluster: dict[str, int] | None = None,
    seed: int | None = None,
    interrupted: bool = False,
) -> dict[str, Any]:
    """Return the figures by name, in the order of KEYS. Arguments that are not given are taken from the facts."""
    metrics.settle()
    jobs, settings = metrics.jobs, metrics.settings
    n = len(jobs)
    completed = jobs.in_state(JobState.COMPLETED)
    jct_h = jct_hours(metrics)
    rho = jobs.rho()[completed]
    rho = rho[~np.isnan(rho)]
    figures = {
        "jobs": n,
        "completed": int(completed.sum()),
        "mean_jct_h": _mean(jct_h),
        "median_jct_h": _percentile(jct_h, 50),
        "p99_jct_h": _percentile(jct_h, 99),
        "mean_queue_h": _mean(jobs.queue_s(metrics.now_s)[completed] / HOUR_S),
        "makespan_h": _makespan_h(metrics),
        "utilization": utilisation(metrics),
        "cost_usd": float(jobs.numbers("cost_usd").sum()),
        "deadline_misses": int(np.nansum(jobs.missed(metrics.now_s))),
        "max_rho": float(rho.max()) if rho.size else None,
        "mean_rho": _mean(rho),
        "unfair_fraction": _mean((rho > UNFAIR_RHO).astype(float)),
        "preemptions_per_job": float(jobs.numbers("preemptions").sum()) / n if n else None,
        "restart_h": float(jobs.numbers("restart_s").sum()) / HOUR_S,
        "rounds": metrics.rounds,
        "wall_s": wall_s,
        "policy": policy if policy is not None else settings and settings.policy,
        "cluster": cluster if cluster is not None else dict(metrics.cluster),
        "seed": seed if seed is not None else settings and settings.seed,
    }
    assert tuple(figures) == KEYS
    return {**figures, INTERRUPTED: True} if interrupted else figures


def jct_hours(metrics: Metrics) -> NDArray[np.float64]:
    """Return the completion times of the measured jobs that completed, in hours."""
    jobs = metrics.jobs
    taken_s = jobs.numbers("end_s") - jobs.numbers("arrival_s")
    return np.asarray(taken_s[jobs.in_state(JobState.COMPLETED)] / HOUR_S)


def utilisation(metrics: Metrics) -> dict[str, float | None]:
    """Return the fraction of each type's GPU time that was in use while there were measured jobs."""
    names = metrics.gpus.worker_types
    if metrics.at_first_arrival is None:
        return dict.fromkeys(names)
    start, end = metrics.at_first_arrival, _final_totals(metrics)
    fractions: dict[str, float | None] = {}
    for kind, name in enumerate(names):
        capacity_s = _total(end.capacity_s, kind) - _total(start.capacity_s, kind)
        busy_s = _total(end.busy_s, kind) - _total(start.busy_s, kind)
        fractions[name] = min(busy_s / capacity_s, 1.0) if capacity_s > 0 else None
    return fractions


def _final_totals(metrics: Metrics) -> GpuTotals:
    """Return the totals at the end of the last measured job, or now if some have not ended."""
    if metrics.ended == len(metrics.jobs) and metrics.at_last_end is not None:
        return metrics.at_last_end
    return GpuTotals(metrics.now_s, *metrics.gpus.totals(metrics.now_s))


def _makespan_h(metrics: Metrics) -> float | None:
    """Return the time from the first submission to the last end of measured jobs; None until all of them have ended."""
    first, last = metrics.at_first_arrival, metrics.at_last_end
    if first is None or last is None or metrics.ended < len(metrics.jobs):
        return None
    return (last.at_s - first.at_s) / HOUR_S


def _total(totals: tuple[float, ...], kind: int) -> float:
    # A type that appeared later has no total yet.
    return totals[kind] if kind < len(totals) else 0.0


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: NDArray[np.float64], percent: float) -> float | None:
    value = float(np.percentile(values, percent)) if values.size else math.nan
    return None if math.isnan(value) else value
