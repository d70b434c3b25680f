"""Compare the leases that jobs hold with a plan: which end, which continue, which are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import Held, RoundPlan


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """The changes that a plan makes to leases. A lease not listed here as ended or rebundled continues unchanged."""

    # Jobs that leave their GPUs. A job that moves to other GPUs is in `granted` as well.
    ended: tuple[str, ...]
    # Jobs that keep their GPUs, but with a new partner or without their old one, and their new bundles.
    rebundled: tuple[tuple[str, Bundle], ...]
    # Jobs that get a new lease, with its bundle and GPUs.
    granted: tuple[tuple[str, Bundle, tuple[GpuId, ...]], ...]


def diff(held: Mapping[str, Held], plan: RoundPlan) -> LeaseChanges:
    """Return the changes that the plan makes to the leases. Each list is in the order of the jobs' ids.

    A lease continues only if its GPUs, their order and its bundle's type, width and label stay the same.
    """
    kept: list[str] = []
    rebundled: list[tuple[str, Bundle]] = []
    granted: list[tuple[str, Bundle, tuple[GpuId, ...]]] = []
    for bundle, gpus in plan.placements.items():
        for job in bundle[0]:
            holding = held.get(job)
            if holding is None or holding.gpus != gpus:
                granted.append((job, bundle, gpus))
            elif holding.bundle is bundle or holding.bundle == bundle:
                kept.append(job)
            elif holding.bundle[1:] == bundle[1:]:
                rebundled.append((job, bundle))
            else:
                granted.append((job, bundle, gpus))
    ended = held.keys() - kept
    ended.difference_update([job for job, _ in rebundled])
    return LeaseChanges(
        ended=tuple(sorted(ended)),
        rebundled=tuple(sorted(rebundled)),
        granted=tuple(sorted(granted)),
    )
