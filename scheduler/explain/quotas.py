"""Explain jobs that the quotas on GPUs of their tenants or users do not admit, ever or beside the leases of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.core.planning.admission import limits_of, tightest
from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.explain import remedies
from scheduler.explain.answer import Change, Reason
from scheduler.explain.finding import NAMED_MAX, Finding
from scheduler.explain.scene import Column, Pool, Scene
from scheduler.explain.wording import jobs
from scheduler.model.gpu_quotas import GpuQuota
from scheduler.model.quota import ALL_TYPES


def within_quotas(scene: Scene, columns: list[Column]) -> tuple[list[Column], Finding | None]:
    """Return those of these columns that the quotas admit now. If there are none, explain it."""
    quotas = scene.state.gpu_quotas.of(scene.job.spec)
    if not quotas:
        return columns, None
    limits = {kind: tightest(scene.state, scene.job.spec, kind) for kind in scene.pools}
    narrow = [
        c for c in columns if (limit := limits[c.bundle.worker_type]) is None or _width(c) <= limit.gpus
    ]
    if not narrow:
        kinds = dict.fromkeys(column.bundle.worker_type for column in columns)
        return [], _too_wide(scene, [limit for kind in kinds if (limit := limits[kind]) is not None])
    leases = QuotaLeases.of_state(scene.state)
    used = {quota: len(leases.gpus(quota)) for quota in quotas}
    admitted = [column for column in narrow if _exceeded(column, used) is None]
    if admitted:
        return admitted, None
    exceeded = _exceeded(narrow[0], used)
    assert exceeded is not None
    return [], _used_up(scene, narrow[0], exceeded, leases)


def _width(column: Column) -> int:
    return column.bundle.gpus


def _exceeded(column: Column, used: Mapping[GpuQuota, int]) -> GpuQuota | None:
    """Return the quota that leaves this column the fewest GPUs, if these are too few."""
    if len(column.bundle.jobs) > 1:
        # The quota may count the GPUs already, because the partner holds them.
        return None
    left = {
        quota: quota.gpus - gpus for quota, gpus in used.items() if quota.counts(column.bundle.worker_type)
    }
    tight = min(left, key=left.__getitem__, default=None)
    return tight if tight is not None and left[tight] < _width(column) else None


def _too_wide(scene: Scene, limits: Sequence[GpuQuota]) -> Finding:
    narrowest = scene.job.spec.narrowest
    text = f"It needs {narrowest} GPU{'s' if narrowest > 1 else ''}, but {limits_of(limits)}."
    return Finding(Reason.TOO_WIDE_FOR_QUOTA, text, (), (_raise(limits[0], narrowest),))


def _used_up(scene: Scene, column: Column, quota: GpuQuota, leases: QuotaLeases) -> Finding:
    """Explain that other jobs of the tenant or user use up their quota."""
    holdings = [holding for holding in leases.of(quota) if holding.lease.job != scene.job.id]
    names = list(dict.fromkeys(holding.lease.job for holding in holdings))
    used = len(leases.gpus(quota))
    by = f"{jobs(names)} hold{'' if len(names) > 1 else 's'}" if names else "its own last run still holds"
    kind = "GPUs" if quota.worker_type == ALL_TYPES else quota.worker_type
    level = str(quota.level)
    text = f"{level[0].upper()}{level[1:]} may hold at most {quota.gpus} {kind} at once, and {by} {used}; "
    text += f"this job needs {_width(column)}."
    changes = (
        *remedies.ends(scene, Pool(column.bundle.worker_type, holdings=holdings)),
        _raise(quota, used + _width(column)),
    )
    return Finding(Reason.QUOTA_GPUS, text, tuple(names[:NAMED_MAX]), changes)


def _raise(quota: GpuQuota, gpus: int) -> Change:
    option = "--gpus" if quota.level.user is None else "--each-user-gpus"
    command = f"gavel tenant set {quota.level.tenant} {option} '{quota.worker_type}={gpus}'"
    return Change(what="raise_quota", text=f"an operator raises the quota (`{command}`)")
