"""From who holds what and who shall run where: which leases end, go on, and are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import Held, RoundPlan


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """What a plan changes. Who holds something and is neither in `ended` nor in `rebundled` goes on just so."""

    ended: tuple[str, ...]  # jobs that leave their GPUs; those that come back on others are in `granted`, too
    rebundled: tuple[tuple[str, Bundle], ...]  # same GPUs, another partner, or none
    granted: tuple[tuple[str, Bundle, tuple[GpuId, ...]], ...]


def diff(held: Mapping[str, Held], plan: RoundPlan) -> LeaseChanges:
    """What has to happen to the leases, each list in order of the jobs' ids.

    A job goes on only where its GPUs, in their order, and the way it runs on them (type, width, label) stay the same.
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
