"""Quotas on GPUs, by job: which quotas of tenants and users count it.

Every quota on the path from a job's tenant to the root counts the job, and so does the quota that each of these tenants
gives to every user. A job without a tenant belongs to the tenant called default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from scheduler.model.quota import ALL_TYPES, Quota
from scheduler.model.settings import Settings, TenantSpec

# The tenant of jobs that name none, if the settings have tenants.
NO_TENANT = "default"
# For how many tenants and users their quotas are kept. Users make up names of tenants.
OWNERS_MAX = 10_000
# A quota.
Q = TypeVar("Q")


class Level(NamedTuple):
    """The owner of a quota: a tenant as a whole (`user` is None), or one user of a tenant."""

    tenant: str
    user: str | None = None

    def counts(self, tenant: str, user: str) -> bool:
        """Whether jobs of this tenant and user belong to the level."""
        return self.user in (None, user) and f"{tenant or NO_TENANT}/".startswith(f"{self.tenant}/")

    def __str__(self) -> str:
        return f"tenant {self.tenant}" if self.user is None else f"user '{self.user}' of tenant {self.tenant}"


class Owner(Protocol):
    """A job, or what is known of it."""

    @property
    def tenant(self) -> str:
        """Its tenant; empty: the tenant called default."""

    @property
    def user(self) -> str:
        """Its user."""


class GpuQuota(NamedTuple):
    """How many GPUs of a type (ALL_TYPES: of all types together) the jobs of a level may hold at once."""

    level: Level
    worker_type: str
    gpus: int

    def counts(self, worker_type: str) -> bool:
        """Whether the quota counts GPUs of this type."""
        return self.worker_type in (ALL_TYPES, worker_type)


def path_of(tenant: str) -> Iterator[str]:
    """Yield the path of a tenant, then those above it."""
    path = tenant or NO_TENANT
    while path:
        yield path
        path = path.rpartition("/")[0]


def levels_of(tenants: Mapping[str, TenantSpec], tenant: str, user: str) -> Iterator[tuple[Level, Quota]]:
    """Yield the levels above a job of this tenant and user that are among these tenants, each with its quota."""
    for path in path_of(tenant):
        spec = tenants.get(path)
        if spec is not None:
            yield Level(path), spec.quota
            yield Level(path, user), spec.each_user


class QuotasByOwner(Generic[Q]):
    """The quotas that count each job, by its tenant and user."""

    def __init__(self, settings: Settings, quotas_in: Callable[[Level, Quota], Iterable[Q]]) -> None:
        """Take the quotas of these settings. `quotas_in`: those of one level."""
        self._quotas_in = quotas_in
        self._tenants: Mapping[str, TenantSpec] = {
            tenant.name: tenant
            for tenant in settings.tenants
            if any(any(quotas_in(Level(""), quota)) for quota in (tenant.quota, tenant.each_user))
        }
        self._of: dict[tuple[str, str], tuple[Q, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def of(self, job: Owner) -> tuple[Q, ...]:
        """Return the quotas that count a job, those of its own tenant first."""
        if not self._tenants:
            return ()
        owner = job.tenant, job.user
        if owner not in self._of:
            if len(self._of) >= OWNERS_MAX:
                self._of.clear()
            levels = levels_of(self._tenants, *owner)
            self._of[owner] = tuple([own for level, quota in levels for own in self._quotas_in(level, quota)])
        return self._of[owner]


class GpuQuotas(QuotasByOwner[GpuQuota]):
    """The quotas on GPUs of some settings, by job."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, _gpu_quotas)


def _gpu_quotas(level: Level, quota: Quota) -> Iterable[GpuQuota]:
    return [GpuQuota(level, worker_type, gpus) for worker_type, gpus in sorted(quota.gpus.items())]
