"""The calls about automatic plans, for both clients."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gavel.client import calls
from gavel.client.errors import Refused
from gavel.client.jobs.intake import Jobs, has_auto_plans, specs_of
from gavel.client.transport.channels import AsyncTransport, SyncTransport

if TYPE_CHECKING:
    from gavel.client import results as r
    from gavel.client.jobs.packing import Progress
    from gavel.client.jobs.spec import JobSpec
    from gavel.client.plans.refreshing import PlansRefreshed


class PlanMethods(ABC):
    """The calls of the blocking client."""

    _wire: SyncTransport

    @abstractmethod
    def get(self, job: str) -> r.Job:
        """Return one job."""

    @abstractmethod
    def members(self, job: str) -> tuple[r.Job, ...]:
        """Return the jobs of an array, or one job."""

    def with_plans(self, jobs: Jobs, progress: Progress | None = None) -> tuple[JobSpec, ...]:
        """Return the jobs as they would be submitted: their automatic plans are computed for the nodes as they are now.

        `submit` and `preview` do this, too. Raises InvalidJob if no plan is possible.
        """
        specs = specs_of(jobs)
        if not has_auto_plans(specs):
            return specs
        from gavel.client.plans.planning import planned

        nodes = self._wire.call(calls.nodes(nodes=()))
        return planned(specs, nodes, progress)[0]

    def refresh_plans(self, job: str, progress: Progress | None = None) -> tuple[PlansRefreshed, ...]:
        """Compute the automatic plans of a job, or of all jobs of an array, again for the nodes as they are now.

        Returns what has changed, for each unfinished job. A running job keeps the plan by which it runs. Raises Refused
        for a job that has ended or has no automatic plans, and InvalidJob if no plan is possible.
        """
        from gavel.client.plans.refreshing import Refreshing

        nodes = self._wire.call(calls.nodes(nodes=()))
        refreshing = Refreshing(self.members(job), nodes, progress)
        for member in refreshing.jobs:
            try:
                self._wire.call(refreshing.update(member))
            except Refused:
                # It may have ended meanwhile.
                if not self.get(member.id).state.is_final:
                    raise
                continue
            refreshing.take(member, self.get(member.id))
        return tuple(refreshing.results)


class AsyncPlanMethods(ABC):
    """The calls of the client for programs with an event loop."""

    _wire: AsyncTransport

    @abstractmethod
    async def get(self, job: str) -> r.Job:
        """Return one job."""

    @abstractmethod
    async def members(self, job: str) -> tuple[r.Job, ...]:
        """Return the jobs of an array, or one job."""

    async def with_plans(self, jobs: Jobs, progress: Progress | None = None) -> tuple[JobSpec, ...]:
        """Return the jobs as they would be submitted: their automatic plans are computed for the nodes as they are now.

        `submit` and `preview` do this, too. Raises InvalidJob if no plan is possible.
        """
        specs = specs_of(jobs)
        if not has_auto_plans(specs):
            return specs
        from gavel.client.plans.planning import planned

        nodes = await self._wire.call(calls.nodes(nodes=()))
        return (await asyncio.to_thread(planned, specs, nodes, progress))[0]

    async def refresh_plans(self, job: str, progress: Progress | None = None) -> tuple[PlansRefreshed, ...]:
        """Compute the automatic plans of a job, or of all jobs of an array, again for the nodes as they are now.

        Returns what has changed, for each unfinished job. A running job keeps the plan by which it runs. Raises Refused
        for a job that has ended or has no automatic plans, and InvalidJob if no plan is possible.
        """
        from gavel.client.plans.refreshing import Refreshing

        members = await self.members(job)
        nodes = await self._wire.call(calls.nodes(nodes=()))
        refreshing = await asyncio.to_thread(Refreshing, members, nodes, progress)
        for member in refreshing.jobs:
            try:
                await self._wire.call(refreshing.update(member))
            except Refused:
                if not (await self.get(member.id)).state.is_final:
                    raise
                continue
            refreshing.take(member, await self.get(member.id))
        return tuple(refreshing.results)
