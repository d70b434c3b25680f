"""The calls about the past, for both clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from gavel.client import calls
from gavel.client.calls import By, GpuTimeBy, Method
from gavel.client.errors import Invalid
from gavel.client.lookups import Asking
from gavel.client.transport.channels import AsyncTransport, SyncTransport

if TYPE_CHECKING:
    from gavel.client import results as r

P = TypeVar("P")
R = TypeVar("R")
# The most leases, rounds or rows that the scheduler returns in one call.
PAGE_MAX = 10_000


class HistoryMethods(ABC):
    """The calls of the blocking client."""

    _wire: SyncTransport

    @abstractmethod
    def _id(self, job: str) -> str:
        """Return the id of a job that is given by id or name."""

    def timeline(self, job: str) -> tuple[r.LeaseRecord, ...]:
        """Return the leases of a job, the first one first: where it ran, when, and why each lease ended."""
        return self._wire.ask(_timeline(self._id(job)))

    def leases(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        node: str = "",
        limit: int | None = 1000,
    ) -> tuple[r.LeaseRecord, ...]:
        """Return the leases of all jobs, or those on a node: those that have not ended, then the latest end first.

        By default, of the last day, and at most `limit` of them. `steps_made` is None.
        """
        return self._wire.ask(_leases(since, until, node, limit))

    def past_rounds(
        self, *, since: datetime | None = None, until: datetime | None = None, limit: int | None = 1000
    ) -> tuple[r.RoundRecord, ...]:
        """Return the rounds of a time, the latest first; at most `limit` of them."""
        return self._wire.ask(_rounds(since, until, limit))

    def shares(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: float = 0.0,
        tenant: str = "",
    ) -> r.Shares:
        """Return the GPU time that tenants were due by the policy, and what they received.

        By default, of the last day. With `step_s`, separately for each step of this length. `tenant`: only this tenant
        and those below it.
        """
        return self._wire.call(calls.shares(since=since, until=until, step_s=step_s, tenant=tenant))

    def matrix(
        self, *, by_tenant: bool = False, tenant: str = "", limit: int | None = 1000
    ) -> tuple[r.MatrixRow, ...]:
        """Return what jobs, or tenants, were due lately and what they received, those furthest behind first.

        Times are the sums by which rounds are planned: after 20 rounds (setting `half_life_rounds`), time counts half.
        `tenant`: only this tenant and those below it. Beyond 10,000 rows, one whose gap changes while they are read may
        be missing or appear twice.
        """
        return self._wire.ask(_matrix(by_tenant, tenant, limit))

    def gpu_time(
        self,
        by: GpuTimeBy = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> r.GpuTime:
        """Return how GPUs were used: useful, restart, lost or idle; by worker type, node or day, also free.

        By default, as far back as the history goes. `user`: only the leases of this user.
        """
        return self._wire.call(calls.gpu_time(by=by, since=since, until=until, user=user))

    def usage(
        self,
        by: By = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> tuple[r.UsageRow, ...]:
        """Return GPU time and cost by user, tenant or job type."""
        return self._wire.call(calls.usage(by=by, since=since, until=until, user=user))


class AsyncHistoryMethods(ABC):
    """The calls of the client for programs with an event loop."""

    _wire: AsyncTransport

    @abstractmethod
    async def _id(self, job: str) -> str:
        """Return the id of a job that is given by id or name."""

    async def timeline(self, job: str) -> tuple[r.LeaseRecord, ...]:
        """Return the leases of a job, as `Client.timeline` does."""
        return await self._wire.ask(_timeline(await self._id(job)))

    async def leases(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        node: str = "",
        limit: int | None = 1000,
    ) -> tuple[r.LeaseRecord, ...]:
        """Return the leases of all jobs, as `Client.leases` does."""
        return await self._wire.ask(_leases(since, until, node, limit))

    async def past_rounds(
        self, *, since: datetime | None = None, until: datetime | None = None, limit: int | None = 1000
    ) -> tuple[r.RoundRecord, ...]:
        """Return the rounds of a time, as `Client.past_rounds` does."""
        return await self._wire.ask(_rounds(since, until, limit))

    async def shares(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: float = 0.0,
        tenant: str = "",
    ) -> r.Shares:
        """Return what tenants were due and received, as `Client.shares` does."""
        return await self._wire.call(calls.shares(since=since, until=until, step_s=step_s, tenant=tenant))

    async def matrix(
        self, *, by_tenant: bool = False, tenant: str = "", limit: int | None = 1000
    ) -> tuple[r.MatrixRow, ...]:
        """Return what jobs, or tenants, were due lately and what they received, as `Client.matrix` does."""
        return await self._wire.ask(_matrix(by_tenant, tenant, limit))

    async def gpu_time(
        self,
        by: GpuTimeBy = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> r.GpuTime:
        """Return how GPUs were used, as `Client.gpu_time` does."""
        return await self._wire.call(calls.gpu_time(by=by, since=since, until=until, user=user))

    async def usage(
        self,
        by: By = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> tuple[r.UsageRow, ...]:
        """Return GPU time and cost by user, tenant or job type."""
        return await self._wire.call(calls.usage(by=by, since=since, until=until, user=user))


def _timeline(job: str) -> Asking[tuple[r.LeaseRecord, ...]]:
    leases = yield from _all_pages(calls.timeline, lambda page: page.leases, None, job=job)
    return tuple(reversed(leases))


def _leases(
    since: datetime | None, until: datetime | None, node: str, limit: int | None
) -> Asking[tuple[r.LeaseRecord, ...]]:
    return _all_pages(calls.leases, lambda page: page.leases, limit, since=since, until=until, node=node)


def _rounds(
    since: datetime | None, until: datetime | None, limit: int | None
) -> Asking[tuple[r.RoundRecord, ...]]:
    return _all_pages(calls.past_rounds, lambda page: page.rounds, limit, since=since, until=until)


def _matrix(by_tenant: bool, tenant: str, limit: int | None) -> Asking[tuple[r.MatrixRow, ...]]:
    return _all_pages(calls.matrix, lambda page: page.rows, limit, by_tenant=by_tenant, tenant=tenant)


def _all_pages(
    method: Method[P], rows_of: Callable[[P], tuple[R, ...]], limit: int | None, **fields: Any
) -> Asking[tuple[R, ...]]:
    """Ask for pages until there are no more, or `limit` rows."""
    if limit is not None and limit < 1:
        raise Invalid(f"limit: must be at least 1, got {limit}", field="limit")
    rows: list[R] = []
    token = ""
    while True:
        size = PAGE_MAX if limit is None else min(limit - len(rows), PAGE_MAX)
        page = yield method(**fields, page_size=size, page_token=token)
        rows += rows_of(page)
        if not (token := page.next_page_token) or (limit is not None and len(rows) >= limit):
            return tuple(rows[:limit])
