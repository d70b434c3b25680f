"""The refresh of automatic plans: they are computed again for the nodes of the cluster as they are now. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gavel.client import calls
from gavel.client.calls import Call
from gavel.client.errors import Refused
from gavel.client.jobs.auto_plans import auto_of
from gavel.client.jobs.spec import AutoPlans, JobSpec, Plan
from gavel.client.plans.planning import planned
from gavel.client.results import Job, Node

if TYPE_CHECKING:
    from gavel.client.jobs.packing import Progress

# Rates closer than this, relatively, are those of the same plan computed by two machines.
SAME_RATE = 1e-6
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlanChange:
    """The change of a job's plan for one worker type and number of GPUs by a refresh."""

    # "added", "dropped", "changed", or "kept": the job runs by this plan, so only a later refresh can replace it.
    outcome: str
    worker_type: str
    gpus: int
    # Empty and 0 if there was no plan, or is none any more.
    label_before: str
    label: str
    rate_before: float
    rate: float


@dataclass(frozen=True, slots=True)
class PlansRefreshed:
    """The changes of a job's plans by a refresh."""

    job: str
    changes: tuple[PlanChange, ...]
    # The number of plans that the job has now.
    plans: int
    # About worker types without plans, and about estimated times.
    notes: tuple[str, ...]


class Refreshing:
    """Computes the plans of unfinished jobs, makes the calls that update them, and records what has changed.

    Raises Refused for jobs without automatic plans, and InvalidJob if no plan is possible for one of them.
    """

    def __init__(self, members: Sequence[Job], nodes: Sequence[Node], progress: Progress | None) -> None:
        self.jobs = [job for job in members if not job.state.is_final]
        if not self.jobs:
            raise Refused(f"job {members[0].id} is {members[0].state} and can no longer be changed")
        specs, notes = planned([_request(job) for job in self.jobs], nodes, progress)
        self._specs = dict(zip([job.id for job in self.jobs], specs, strict=True))
        self._notes = notes
        self.results: list[PlansRefreshed] = []

    def update(self, job: Job) -> Call[tuple[str, ...]]:
        """Return the call that gives a job its new plans."""
        spec, new = job.spec, self._specs[job.id]
        widths = sorted({plan.gpus for plan in _plans(new)})
        gpus, least, most = spec.gpus or 1, spec.gpus_min, spec.gpus_max
        if new.gpus is None and (least, most) == _range(_plans(spec)):
            # The user left the number open. It is that of the plans, and of the one by which the job runs.
            allowed = [*widths, *([len(job.placement.gpus)] if job.placement else [])]
            gpus = least = min(allowed)
            most = max(allowed)
        elif gpus not in widths:
            gpus = next((width for width in widths if (least or gpus) <= width <= (most or gpus)), gpus)
        changes = {"plans": new.plans, "plans_from": spec.plans_from}
        return calls.update(job.id, {**changes, "gpus": gpus, "gpus_min": least, "gpus_max": most})

    def take(self, before: Job, after: Job) -> None:
        """Record what an update has changed."""
        old, new = _by_place(before.spec), _by_place(after.spec)
        computed = _by_place(self._specs[before.id])
        changes = []
        for place in sorted({*old, *new}):
            was, now = old.get(place), new.get(place)
            if not _same(now, computed.get(place)):
                changes.append(_change("kept", was, now))
            elif was is None or now is None:
                changes.append(_change("added" if was is None else "dropped", was, now))
            elif not _same(was, now):
                changes.append(_change("changed", was, now))
        self.results.append(PlansRefreshed(before.id, tuple(changes), len(new), self._notes))


def _request(job: Job) -> JobSpec:
    """Return the job as its user asked for it, with plans to compute."""
    spec = job.spec
    if not spec.plans_from:
        raise Refused(
            f"job {job.id} has no automatic plans: submit it with `plan: {{auto: …}}`, or `gavel update --plan FILE`",
            reason="no_automatic_plans",
        )
    try:
        auto, is_open = auto_of(spec.plans_from)
    except ValueError:
        raise Refused(
            f"job {job.id}: its plans were computed in a way that this release does not know: submit it again, or "
            "`gavel update --plan FILE`",
            reason="no_automatic_plans",
        ) from None
    if is_open:
        # Even if the user has given the job a range since: plans outside of it are for a wider one.
        spec = replace(spec, gpus=None, gpus_min=None, gpus_max=None)
    return replace(spec, plans=auto, plans_from="")


def _range(plans: Sequence[Plan]) -> tuple[int, int]:
    widths = [plan.gpus for plan in plans]
    return min(widths), max(widths)


def _plans(spec: JobSpec) -> tuple[Plan, ...]:
    return () if isinstance(spec.plans, AutoPlans) else spec.plans


def _by_place(spec: JobSpec) -> dict[Place, Plan]:
    return {(plan.worker_type, plan.gpus): plan for plan in _plans(spec)}


def _same(was: Plan | None, now: Plan | None) -> bool:
    if was is None or now is None:
        return was is now
    return was.label == now.label and math.isclose(was.rate, now.rate, rel_tol=SAME_RATE)


def _change(outcome: str, was: Plan | None, now: Plan | None) -> PlanChange:
    plan = now or was
    assert plan is not None
    return PlanChange(
        outcome,
        plan.worker_type,
        plan.gpus,
        label_before=was.label if was else "",
        label=now.label if now else "",
        rate_before=was.rate if was else 0.0,
        rate=now.rate if now else 0.0,
    )
