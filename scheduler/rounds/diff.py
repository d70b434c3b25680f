"""Compare the leases that jobs hold with a plan: which end, which continue, which are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import Held, RoundPlan


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """The changes that a plan makes. A lease that is neither ended nor rebundled continues as it is."""

    # Jobs that leave their GPUs. Those that move to others are in `granted` as well.
    ended: tuple[str, ...]
    # Jobs that keep their GPUs with another partner, or without one.
    rebundled: tuple[tuple[str, Bundle], ...]
    granted: tuple[tuple[str, Bundle, tuple[GpuId, ...]], ...]


def diff(held: Mapping[str, Held], plan: RoundPlan) -> LeaseChanges:
    """Return the changes that the plan makes to the leases, each list in order of the jobs' ids.

    A lease continues only if its GPUs, their order and the way of running (type, width, label) stay the same.
    """
    kept: list[str] = []
    rebundled: list[tuple[str, Bundle]] = []
    granted: list[tuple[str, Bundle, tuple[GpuId, ...]]] = []
    for bundle, gpus in plan.placements.items():
        for job in bundle[0]:
            now = held.get(job)
            if now is None or now.gpus != gpus:
                granted.append((job, bundle, gpus))
            elif now.bundle is bundle or now.bundle == bundle:
                kept.append(job)
            elif now.bundle[1:] == bundle[1:]:
                rebundled.append((job, bundle))
            else:
                granted.append((job, bundle, gpus))
    left = held.keys() - kept
    left.difference_update([job for job, _ in rebundled])
    return LeaseChanges(
        ended=tuple(sorted(left)),
        rebundled=tuple(sorted(rebundled)),
        granted=tuple(sorted(granted)),
    )
