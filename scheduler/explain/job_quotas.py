"""Explain jobs that wait because their tenants or users run as many jobs as their quotas admit."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.planning.job_leases import JobLeases
from scheduler.explain import remedies
from scheduler.explain.answer import Change, Reason
from scheduler.explain.finding import NAMED_MAX, Finding
from scheduler.explain.scene import Column, Pool, Scene
from scheduler.explain.wording import jobs
from scheduler.model.job_quotas import JobQuota


def within_job_quotas(scene: Scene, columns: Sequence[Column]) -> Finding | None:
    """Explain that a quota on running jobs does not admit the job now; return None if all admit it.

    `columns`: the ways in which it could run.
    """
    state = scene.state
    quotas = state.running_quotas.of(scene.job.spec)
    if not quotas:
        return None
    leases = JobLeases.of_state(state)
    for quota in sorted(quotas, key=lambda quota: quota.jobs - len(leases.of(quota))):
        names = [name for name in leases.of(quota) if name != scene.job.id]
        if len(names) >= quota.jobs:
            return _full(scene, quota, names, columns)
    return None


def _full(scene: Scene, quota: JobQuota, names: list[str], columns: Sequence[Column]) -> Finding:
    level, limit = str(quota.level), "1 job" if quota.jobs == 1 else f"{quota.jobs:,} jobs"
    text = f"{level[0].upper()}{level[1:]} may run at most {limit} at once"
    text += f", and {jobs(names)} {'runs' if len(names) == 1 else 'run'}." if names else "."
    held = [holding for holding in scene.state.leases.values() if holding.lease.job in set(names)]
    changes = (
        *remedies.ends(scene, Pool(columns[0].bundle.worker_type, holdings=held)),
        _raise(quota, len(names) + 1),
    )
    return Finding(Reason.QUOTA_JOBS, text, tuple(names[:NAMED_MAX]), changes)


def _raise(quota: JobQuota, count: int) -> Change:
    option = "--jobs-running" if quota.level.user is None else "--each-user-jobs-running"
    command = f"gavel tenant set {quota.level.tenant} {option} {count}"
    return Change(what="raise_quota", text=f"an operator raises the quota (`{command}`)")
