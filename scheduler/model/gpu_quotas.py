"""Quotas on GPUs, by job: which quotas of tenants and users count it.

Every quota on the path from a job's tenant to the root counts the job, and so does the quota that each of these tenants
gives to every user. A job without a tenant belongs to the tenant called default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from scheduler.model.quota import ALL_TYPES
from scheduler.model.settings import Settings, TenantSpec

# The tenant of jobs that name none, if the settings have tenants.
NO_TENANT = "default"


class Level(NamedTuple):
    """The owner of a quota: a tenant as a whole (`user` is None), or one user of a tenant."""

    tenant: str
    user: str | None = None

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


class GpuQuotas:
    """The quotas on GPUs of some settings, by job."""

    def __init__(self, settings: Settings) -> None:
        self._tenants: Mapping[str, TenantSpec] = {
            tenant.name: tenant for tenant in settings.tenants if tenant.quota.gpus or tenant.each_user.gpus
        }
        self._of: dict[tuple[str, str], tuple[GpuQuota, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def of(self, job: Owner) -> tuple[GpuQuota, ...]:
        """Return the quotas that count a job, those of its own tenant first."""
        if not self._tenants:
            return ()
        owner = job.tenant, job.user
        if owner not in self._of:
            self._of[owner] = tuple(self._along(*owner))
        return self._of[owner]

    def _along(self, tenant: str, user: str) -> Iterator[GpuQuota]:
        for path in path_of(tenant):
            owner = self._tenants.get(path)
            if owner is None:
                continue
            for level, quota in ((Level(path), owner.quota), (Level(path, user), owner.each_user)):
                for worker_type, gpus in sorted(quota.gpus.items()):
                    yield GpuQuota(level, worker_type, gpus)
