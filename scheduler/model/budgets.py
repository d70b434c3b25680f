"""Budgets: the GPU-hours, or the cost, that a tenant or each of its users may spend in a day, a week or a month.

Periods are those of UTC, and weeks begin on Monday. As with quotas on GPUs, every budget on the path from a job's
tenant to the root counts the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from scheduler.model.bounds import readable
from scheduler.model.gpu_quotas import Level, Owner, path_of
from scheduler.model.quota import BUDGETS, PERIODS, Quota
from scheduler.model.settings import Settings, TenantSpec

DAY_S = 86_400.0
# The first Monday after the beginning of 1970.
MONDAY_S = 4 * DAY_S
# The last time with a date.
LATEST_S = 253_402_300_799.0


class Period(NamedTuple):
    """One day, week or month."""

    starts_s: float
    ends_s: float

    def overlap_s(self, since_s: float, until_s: float) -> float:
        """Return how much of the time from `since_s` to `until_s` belongs to the period."""
        return max(min(until_s, self.ends_s) - max(since_s, self.starts_s), 0.0)


def period_at(name: str, at_s: float) -> Period:
    """Return the day, week or month to which a time belongs."""
    if name == "day":
        starts_s = at_s // DAY_S * DAY_S
        return Period(starts_s, starts_s + DAY_S)
    if name == "week":
        starts_s = (at_s - MONDAY_S) // (7 * DAY_S) * (7 * DAY_S) + MONDAY_S
        return Period(starts_s, starts_s + 7 * DAY_S)
    month = np.datetime64(int(min(max(at_s, 0.0), LATEST_S) // DAY_S), "D").astype("datetime64[M]")
    starts_s, ends_s = ((month + later).astype("datetime64[s]").astype(float) for later in (0, 1))
    return Period(float(starts_s), float(ends_s))


def figure(amount: float) -> str:
    """Return an amount to two decimals, for users."""
    return readable(round(amount, 2))


def day_of(at_s: float) -> str:
    """Return the day of a time, for users."""
    return f"{np.datetime64(int(min(at_s, LATEST_S)), 's').astype('datetime64[D]')} (UTC)"


class AccountId(NamedTuple):
    """The account of a level: what it has spent of a resource in a period. `user` is empty for a tenant as a whole."""

    tenant: str
    user: str
    resource: str
    period: str

    @property
    def level(self) -> Level:
        """The owner of the account."""
        return Level(self.tenant, self.user or None)


class Account(msgspec.Struct, array_like=True):
    """The spending of a level in the current period."""

    tenant: str
    user: str
    resource: str
    period: str
    # The begin of the period.
    starts_s: float
    # GPU-hours, or money.
    spent: float = 0.0
    # The last percentage of the limit that was recorded (`BudgetReached`); 0: none.
    reached: int = 0

    @property
    def id(self) -> AccountId:
        """The key of the account."""
        return AccountId(self.tenant, self.user, self.resource, self.period)


class Budget(NamedTuple):
    """How much a level may spend of a resource in a period."""

    account: AccountId
    limit: float
    # Whether jobs beyond it may still have GPUs that are due to no job.
    backfills: bool = False

    @property
    def resource(self) -> str:
        """GPU-hours (`gpu_hours`) or `cost`."""
        return self.account.resource

    @property
    def period(self) -> str:
        """The name of its period."""
        return self.account.period

    @property
    def level(self) -> Level:
        """The owner of the budget."""
        return self.account.level

    def amount(self, value: float) -> str:
        """Describe an amount: "12.5 GPU-hours"."""
        return f"{figure(value)} GPU-hours" if self.resource == "gpu_hours" else f"{figure(value)} (cost)"

    @property
    def slack(self) -> float:
        """The tolerance for sums of floats."""
        return 1e-9 * max(self.limit, 1.0)


class Budgets:
    """The budgets of some settings, by job."""

    def __init__(self, settings: Settings) -> None:
        self._tenants: Mapping[str, TenantSpec] = {
            tenant.name: tenant
            for tenant in settings.tenants
            if _has_budgets(tenant.quota) or _has_budgets(tenant.each_user)
        }
        self._of: dict[tuple[str, str], tuple[Budget, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def of(self, job: Owner) -> tuple[Budget, ...]:
        """Return the budgets that count a job, those of its own tenant first."""
        if not self._tenants:
            return ()
        owner = job.tenant, job.user
        if owner not in self._of:
            self._of[owner] = tuple(self._along(*owner))
        return self._of[owner]

    def of_level(self, level: Level) -> tuple[Budget, ...]:
        """Return the budgets of a tenant as a whole, or of one of its users."""
        tenant = self._tenants.get(level.tenant)
        if tenant is None:
            return ()
        return tuple(_budgets_of(level, tenant.quota if level.user is None else tenant.each_user))

    def _along(self, tenant: str, user: str) -> Iterator[Budget]:
        for path in path_of(tenant):
            yield from self.of_level(Level(path))
            if user:
                yield from self.of_level(Level(path, user))


def _has_budgets(quota: Quota) -> bool:
    return bool(quota.gpu_hours or quota.cost)


def _budgets_of(level: Level, quota: Quota) -> Iterable[Budget]:
    for resource in BUDGETS:
        limits: Mapping[str, float] = getattr(quota, resource)
        for period in PERIODS:
            if period in limits:
                account = AccountId(level.tenant, level.user or "", resource, period)
                yield Budget(account, limits[period], quota.beyond == "backfill")
