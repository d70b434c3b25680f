"""The expected start of a waiting job, what this estimate is based on, and how sure it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from scheduler.core.planning.round_inputs import kept_until_s
from scheduler.core.state import SchedulerState
from scheduler.explain.answer import Basis, Sure
from scheduler.explain.claims import Claims
from scheduler.explain.forecast import boundary_s, done_s, ends_s
from scheduler.explain.scene import Column, Pool, Scene, release_s
from scheduler.model.cluster import in_groups
from scheduler.model.jobs import Job
from scheduler.model.lease import GpuId, Holding, Phase, node_of

# At most this many leases of a worker type are examined. If there are more, some GPUs become free soon anyway.
LEASES_EXAMINED_MAX = 256
# A start that is more rounds ahead than this is not estimated.
ROUNDS_AHEAD_MAX = 10_000


class Start(NamedTuple):
    """An estimated start, its basis, and how sure it is."""

    at_s: float | None = None
    basis: Basis = ""
    sure: Sure = "unknown"


UNKNOWN = Start()


def after_leases(state: SchedulerState, holding: Holding, now_s: float) -> Start:
    """Estimate the start of a lease: when the leases that it waits for free their GPUs."""
    times = [release_s(state, state.leases[name], now_s) for name in holding.waits_for]
    return Start(max([now_s, *times]), "lease_granted", "likely")


def after_jobs(state: SchedulerState, job: Job, now_s: float) -> Start:
    """Estimate the start of a job with dependencies: at the first boundary after all of them have ended."""
    times = [done_s(state, state.jobs[name], now_s) for name in sorted(job.blocked_by)]
    known = [at_s for at_s in times if at_s is not None]
    if not known or len(known) < len(times):
        return UNKNOWN
    return Start(boundary_s(state, now_s, max(known)), "dependency_ends", "rough")


def of_turn(scene: Scene, column: Column, claims: Claims) -> Start:
    """Estimate when a column gets its turn.

    The turn comes at the next boundary if columns with a higher claim leave enough GPUs. Otherwise those columns go
    first, but only until the given column has fallen so far behind that its claim is the highest.
    """
    state, now_s = scene.state, scene.now_s
    pool = scene.pools[column.bundle.worker_type]
    boundary = boundary_s(state, now_s)
    granule = scene.granule(pool.worker_type, column.bundle.gpus)
    open_gpus = in_groups(open_on(scene, pool, boundary).values(), granule)
    if claims.gpus + column.bundle.gpus <= open_gpus:
        return Start(boundary, "next_round", "likely")
    if column.share <= 0:
        return UNKNOWN
    round_s = state.settings.round_s
    stay_s, per_round_s = state.settings.stay_s, column.share * round_s
    until_due = math.ceil(max(-claims.due_s, 0.0) / per_round_s)
    until_late = math.ceil((max(stay_s, round_s) - claims.due_s) / per_round_s)
    rounds_per_turn = max(math.ceil(stay_s / max(round_s - per_round_s, 0.1 * round_s)), 1)
    turns_before = (claims.gpus + column.bundle.gpus - 1) // max(open_gpus, 1)
    rounds = max(until_due, min(turns_before * rounds_per_turn, until_late), 1)
    return Start(boundary + rounds * round_s, "shares", "rough") if rounds < ROUNDS_AHEAD_MAX else UNKNOWN


def open_on(scene: Scene, pool: Pool, at_s: float) -> dict[str, int]:
    """Count, by node, the GPUs that the job could use and that no lease keeps beyond `at_s`."""
    kept = {
        gpu
        for holding in pool.holdings
        if holding.phase != Phase.STOPPING and kept_until_s(scene.state, holding) > at_s + 1e-6
        for gpu in holding.lease.gpus
    }
    kept_on = Counter(map(node_of, kept))
    return {name: max(count - kept_on[name], 0) for name, count in pool.fitting_on.items()}


def after_minimum_runs(scene: Scene, pool: Pool, gpus: int) -> Start:
    """Estimate when enough leases lose their protection from preemption, or end."""
    state, now_s = scene.state, scene.now_s
    boundary = boundary_s(state, now_s)
    times = []
    for holding in pool.holdings[:LEASES_EXAMINED_MAX]:
        kept_s = kept_until_s(state, holding)
        if holding.phase != Phase.STOPPING and kept_s > boundary:
            end_s = ends_s(state, state.jobs[holding.lease.job], now_s)
            times.append((min(kept_s, math.inf if end_s is None else end_s), holding.lease.gpus))
    at_s = _enough(times, open_on(scene, pool, boundary), gpus, scene.granule(pool.worker_type, gpus))
    return UNKNOWN if at_s is None else Start(boundary_s(state, now_s, at_s), "minimum_run_ends", "likely")


def after_ends(scene: Scene, pool: Pool, gpus: int, first: int = 0) -> Start:
    """Estimate when enough running jobs have ended, also for jobs that get so many GPUs `first`."""
    state, now_s = scene.state, scene.now_s
    times = []
    for holding in pool.holdings[:LEASES_EXAMINED_MAX]:
        if holding.phase == Phase.STOPPING:
            end_s: float | None = release_s(state, holding, now_s)
        else:
            end_s = ends_s(state, state.jobs[holding.lease.job], now_s)
        if end_s is not None:
            times.append((end_s, holding.lease.gpus))
    at_s = _enough(times, pool.room_on, gpus + first, scene.granule(pool.worker_type, gpus))
    if at_s is None:
        return UNKNOWN
    fills = state.settings.fill_mid_round and at_s > now_s
    return Start(at_s if fills else boundary_s(state, now_s, at_s), "jobs_end", "rough")


def _enough(
    times: list[tuple[float, tuple[GpuId, ...]]], have_on: Mapping[str, int], gpus: int, granule: int
) -> float | None:
    """Return when there are enough GPUs in groups; None if never. `times`: when which GPUs become free."""
    count_on = dict(have_on)
    have = in_groups(count_on.values(), granule)
    for at_s, more in sorted(times):
        for name, count in Counter(map(node_of, more)).items():
            before = count_on.get(name, 0)
            count_on[name] = before + count
            have += in_groups([before + count], granule) - in_groups([before], granule)
        if have >= gpus:
            return at_s if math.isfinite(at_s) else None
    return None
