"""Changes of a job's specification after its submission."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from scheduler.model.plans import Plan

Spec = TypeVar("Spec", bound=msgspec.Struct)

# Fields that decide where and on how many GPUs a job runs. While it runs, they can only change together with its plans.
SHAPE = ("gpus", "gpus_min", "gpus_max", "gpus_together", "worker_types", "plans")


class JobChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """New values for fields of `JobSpec`. A field that is UNSET keeps its value; None removes a limit."""

    name: str | UnsetType = UNSET
    weight: float | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    gpus: int | UnsetType = UNSET
    gpus_min: int | UnsetType | None = UNSET
    gpus_max: int | UnsetType | None = UNSET
    gpus_together: int | UnsetType = UNSET
    worker_types: tuple[str, ...] | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    deadline_s: float | UnsetType | None = UNSET
    max_cost: float | UnsetType | None = UNSET
    plans: tuple[Plan, ...] | UnsetType = UNSET
    plans_from: str | UnsetType = UNSET

    def differing_from(self, spec: msgspec.Struct) -> JobChanges:
        """Return these changes without those that leave the spec's value as it is."""
        values = {name: value for name, value in self.values().items() if value != getattr(spec, name)}
        return JobChanges(**values)

    def values(self) -> dict[str, Any]:
        """Return the fields that are set, with their new values."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}

    def applied_to(self, spec: Spec) -> Spec:
        """Return the spec with these changes."""
        return msgspec.structs.replace(spec, **self.values())

    def without_documents(self) -> JobChanges:
        """Return these changes for display: without documents of plans, and what these were computed from."""
        if self.plans is UNSET and self.plans_from is UNSET:
            return self
        plans = self.plans and tuple([msgspec.structs.replace(plan, document="") for plan in self.plans])
        return msgspec.structs.replace(self, plans=plans, plans_from=self.plans_from and "…")

    @property
    def changes_shape(self) -> bool:
        """Whether these changes affect where and on how many GPUs the job runs."""
        return any(getattr(self, name) is not UNSET for name in SHAPE)


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One update of a job: when, by whom, and the changed fields with their values before and after."""

    at_s: float
    by: str = ""
    before: JobChanges
    changes: JobChanges
