"""The quotas on unfinished jobs: what their levels have, and whether they admit more."""

from __future__ import annotations

from collections import Counter

from scheduler.core.state import SchedulerState
from scheduler.model.errors import LimitReached
from scheduler.model.gpu_quotas import Level, Owner


class Unfinished:
    """The unfinished jobs of each level, with those that a submission or update adds."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._had: dict[Level, int] = {}
        self._added = Counter[Level]()

    def add(self, owner: Owner, jobs: int = 1, before: Owner | None = None) -> None:
        """Count more jobs; raise LimitReached if a quota does not admit them. `before`: the owner that they leave."""
        quotas = self._state.unfinished_quotas
        left = quotas.of(before) if before is not None else ()
        for quota in quotas.of(owner):
            if quota in left:
                # The level has these jobs already.
                continue
            level = quota.level
            has = self.of(level) + self._added[level]
            if has + jobs > quota.jobs:
                unfinished = "unfinished job" if quota.jobs == 1 else "unfinished jobs"
                raise LimitReached(
                    "tenant",
                    f"{level} may have at most {quota.jobs:,} {unfinished} (jobs_unfinished), "
                    f"and would have {has + jobs:,}: {self.of(level):,} now, {has - self.of(level) + jobs:,} more",
                )
            self._added[level] += jobs

    def of(self, level: Level) -> int:
        """Return how many unfinished jobs a level has now."""
        if level not in self._had:
            owners = self._state.owners.items()
            self._had[level] = sum(jobs for owner, jobs in owners if level.counts(*owner))
        return self._had[level]
