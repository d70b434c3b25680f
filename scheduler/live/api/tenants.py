"""Tenants as clients see them: declarations, jobs, and what is used of each limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.planning.job_leases import JobLeases
from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.core.state import SchedulerState
from scheduler.live.api.budgets import budget_limits
from scheduler.model.errors import NotFound
from scheduler.model.gpu_quotas import GpuQuota, Level, path_of
from scheduler.model.job_quotas import JobQuota
from scheduler.model.jobs import Job
from scheduler.model.quota import Quota
from scheduler.model.settings import UNDECLARED, TenantSpec

_DEFAULT = TenantSpec(name="")


def tenant_views(state: SchedulerState, names: Sequence[str], now_s: float) -> list[pb.Tenant]:
    """Return the tenants with these names or, without names, all that are declared or have unfinished jobs."""
    declared = {tenant.name: tenant for tenant in state.settings.tenants}
    jobs: dict[str, list[Job]] = {}
    for job in state.active.values():
        for path in path_of(job.spec.tenant):
            jobs.setdefault(path, []).append(job)
    unknown = [name for name in names if name not in declared and name not in jobs]
    if unknown:
        raise NotFound(f"there is no tenant '{unknown[0]}'")
    leases = QuotaLeases.of_state(state)
    quotas = {quota: None for job in state.active.values() for quota in state.gpu_quotas.of(job.spec)}
    running = JobLeases.of_state(state)
    views = []
    for name in names or sorted({*declared, *jobs}):
        spec, own_jobs = declared.get(name, _DEFAULT), jobs.get(name, [])
        of_users = sorted(
            quota for quota in quotas if quota.level.tenant == name and quota.level.user is not None
        )
        views.append(
            pb.Tenant(
                name=name,
                weight=spec.weight,
                policy=spec.policy,
                quota=_quota_view(spec.quota),
                each_user=_quota_view(spec.each_user),
                declared=name in declared,
                jobs_unfinished=len(own_jobs),
                jobs_running=sum(job.lease is not None for job in own_jobs),
                limits=[
                    *_limits([*_of_tenant(spec), *of_users], leases),
                    *_job_limits(spec, own_jobs, running),
                    *budget_limits(state, name, {job.spec.user for job in own_jobs}, now_s),
                ],
                version=spec.version if name in declared else UNDECLARED,
            )
        )
    return views


def _quota_view(quota: Quota) -> pb.Quota:
    return pb.Quota(
        gpus=quota.gpus,
        gpu_hours=quota.gpu_hours,
        cost=quota.cost,
        beyond=quota.beyond,
        jobs_running=quota.jobs_running,
        jobs_unfinished=quota.jobs_unfinished,
    )


def _quota(wire: pb.Quota) -> Quota:
    return Quota(
        gpus=dict(wire.gpus),
        gpu_hours=dict(wire.gpu_hours),
        cost=dict(wire.cost),
        beyond=wire.beyond or _DEFAULT.quota.beyond,
        jobs_running=wire.jobs_running if wire.HasField("jobs_running") else None,
        jobs_unfinished=wire.jobs_unfinished if wire.HasField("jobs_unfinished") else None,
    )


def _of_tenant(spec: TenantSpec) -> Iterable[GpuQuota]:
    return (GpuQuota(Level(spec.name), kind, gpus) for kind, gpus in sorted(spec.quota.gpus.items()))


def _limits(quotas: Iterable[GpuQuota], leases: QuotaLeases) -> list[pb.Tenant.Limit]:
    return [
        pb.Tenant.Limit(
            user=quota.level.user or "",
            resource="gpus",
            of=quota.worker_type,
            limit=quota.gpus,
            used=len(leases.gpus(quota)),
        )
        for quota in quotas
    ]


def _job_limits(spec: TenantSpec, jobs: Sequence[Job], running: JobLeases) -> Iterable[pb.Tenant.Limit]:
    """Yield the limits on jobs of a tenant and of its users who have jobs, with the jobs that they count."""
    of_users: dict[str, list[Job]] = {}
    for job in jobs:
        of_users.setdefault(job.spec.user, []).append(job)
    for user, quota, own_jobs in (
        (None, spec.quota, jobs),
        *[(user, spec.each_user, own) for user, own in sorted(of_users.items())],
    ):
        level = Level(spec.name, user)
        for resource, limit in (
            ("jobs_running", quota.jobs_running),
            ("jobs_unfinished", quota.jobs_unfinished),
        ):
            if limit is not None:
                is_running = resource == "jobs_running"
                used = len(running.of(JobQuota(level, limit)) if is_running else own_jobs)
                yield pb.Tenant.Limit(user=user or "", resource=resource, limit=limit, used=used)


def tenant_spec(wire: pb.Tenant) -> TenantSpec:
    """Return the declaration of a tenant."""
    return TenantSpec(
        name=wire.name,
        weight=wire.weight or _DEFAULT.weight,
        policy=wire.policy or _DEFAULT.policy,
        quota=_quota(wire.quota),
        each_user=_quota(wire.each_user),
    )
