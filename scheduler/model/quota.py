"""Quotas: what a tenant, or each of its users, may use at most. The tenants of the settings have them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

# In place of a worker type: the GPUs of all types together.
ALL_TYPES = "*"
# For how long a budget lasts; each begins and ends at midnight UTC, and a week begins on Monday.
PERIODS = ("day", "week", "month")
# The resources of budgets, which are fields of Quota.
BUDGETS = ("gpu_hours", "cost")


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Upper limits; what is absent is not limited."""

    gpus: Annotated[
        dict[str, int], 'How many GPUs may be held at once, by worker type; "*" is for all types together.'
    ] = {}
    gpu_hours: Annotated[
        dict[str, float], "How many GPU-hours may be spent in a period: day, week or month, in UTC."
    ] = {}
    cost: Annotated[
        dict[str, float], "What the GPUs may cost in a period, by price_per_gpu_hour: day, week or month."
    ] = {}
    beyond: Annotated[
        str, "Jobs beyond gpu_hours or cost: wait, or backfill to get only GPUs that are due to no job."
    ] = "wait"
    jobs_running: Annotated[int | None, "How many jobs may hold GPUs at once."] = None
    jobs_unfinished: Annotated[int | None, "How many jobs may be submitted and not have ended."] = None

    def check(self, place: str) -> None:
        """Raise InvalidSpec naming the first field that is wrong. `place`: where this quota stands in the settings."""
        bounds.check_each(f"{place}.gpus", self.gpus, bounds.QUOTA_GPUS)
        for resource in BUDGETS:
            limits: dict[str, float] = getattr(self, resource)
            for period in limits:
                if period not in PERIODS:
                    raise InvalidSpec(
                        f"{place}.{resource}", f"has {bounds.readable(period)}, must be day, week or month"
                    )
            bounds.check_each(f"{place}.{resource}", limits, bounds.QUOTA_SPENT)
        if self.beyond not in ("wait", "backfill"):
            raise InvalidSpec(
                f"{place}.beyond", f"is {bounds.readable(self.beyond)}, must be 'wait' or 'backfill'"
            )
        for field in ("jobs_running", "jobs_unfinished"):
            if (jobs := getattr(self, field)) is not None:
                bounds.check(f"{place}.{field}", jobs, bounds.COUNT)
