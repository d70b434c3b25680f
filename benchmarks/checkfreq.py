"""CheckFreq's interval, as its published code computes it: what our tuner is compared with.

The profile gives the cheapest way to copy the state, and the interval as the steps that the rest of a checkpoint takes.
While training, an interval whose overhead was above the bound grows by two steps; it never falls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

GROWTH = 2


class Profile(NamedTuple):
    """Times of one step, of the ways to copy the state, and of a whole checkpoint."""

    t_iter_s: float
    t_cpu_snapshot_thread_s: float
    t_cpu_snapshot_process_s: float
    t_gpu_snapshot_s: float
    t_full_s: float
    fits_gpu: bool


def first_interval(profile: Profile) -> tuple[str, float, int]:
    """Return where the state is copied to, how long that stops the loop, and the interval in steps."""
    pauses_s = {"cpu": min(profile.t_cpu_snapshot_thread_s, profile.t_cpu_snapshot_process_s)}
    if profile.fits_gpu:
        pauses_s["gpu"] = profile.t_gpu_snapshot_s
    mode = min(pauses_s, key=lambda name: pauses_s[name])
    steps = math.ceil((profile.t_full_s - pauses_s[mode]) / profile.t_iter_s)
    return mode, pauses_s[mode], max(steps, 1)


def later_intervals(interval: int, bound: float, overheads: list[float]) -> Iterator[int]:
    """Yield the interval after each checkpoint, from the overhead since the one before."""
    for overhead in overheads:
        interval += GROWTH if overhead > bound else 0
        yield interval
