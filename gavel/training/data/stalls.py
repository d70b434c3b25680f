"""Data stalls: the part of the time that a loop waits for its data, and what would shorten it. Pure.

The method is that of DS-Analyzer (Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5),
2021): the rates of the same loop with data that is already there, with data in memory, and with data on the disk differ
by the time that it waits for preparation and for reading. All rates are in one unit, steps or samples per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

# Which parts of a step overlap. IN_TURN: none, the loop itself loads its data. WORKERS: workers read and prepare in
# turn while the model computes. PIPELINED: reading, preparation and the model all overlap.
IN_TURN, WORKERS, PIPELINED = "in turn", "workers", "pipelined"
# A change that makes a loop less than this much faster does not help: it is within the noise of a probe.
HELPS = 1.05


class Fractions(NamedTuple):
    """The parts of the time in which a loop computes, and waits for preparation and for reading."""

    busy: float
    prep: float
    fetch: float


class Speed(NamedTuple):
    """How fast a loop is, what limits it, and the part of the data that must be cached for reading not to."""

    fetch_rate: float
    rate: float
    # "gpu", "prep" or "fetch".
    bound_by: str
    fractions: Fractions
    # None: reading limits the loop even if all data is cached.
    cache_needed: float | None


def fractions(synthetic_rate: float, cached_rate: float, real_rate: float) -> Fractions:
    """Return how a loop spends its time, from its rates without data, with cached data, and with its real data."""
    return Fractions(
        real_rate / synthetic_rate,
        max(0.0, (1 / cached_rate - 1 / synthetic_rate) * real_rate),
        max(0.0, (1 / real_rate - 1 / cached_rate) * real_rate),
    )


def fetch_rate(cache_rate: float, storage_rate: float, cached: float) -> float:
    """Return the rate of reading if this part of the data comes from the cache, and the rest from storage."""
    return 1 / (cached / cache_rate + (1 - cached) / storage_rate)


def what_if(
    cache_rate: float, storage_rate: float, prep_rate: float, gpu_rate: float, cached: float
) -> Speed:
    """Return the speed of a loop whose reading, preparation and model overlap: that of the slowest of them."""
    from_data = fetch_rate(cache_rate, storage_rate, cached)
    rate = min(from_data, prep_rate, gpu_rate)
    bound_by = "gpu" if rate == gpu_rate else "prep" if rate == prep_rate else "fetch"
    others = min(prep_rate, gpu_rate)
    if storage_rate >= others:
        cache_needed: float | None = 0.0
    elif cache_rate >= others:
        cache_needed = (1 / storage_rate - 1 / others) / (1 / storage_rate - 1 / cache_rate)
    else:
        cache_needed = None
    return Speed(from_data, rate, bound_by, fractions(gpu_rate, others, rate), cache_needed)


@dataclass(frozen=True)
class Step:
    """The seconds of one step: of the model, of preparation, and of reading; and which of them overlap."""

    model_s: float
    prep_s: float
    fetch_s: float
    overlap: str

    @property
    def rate(self) -> float:
        """The steps per second."""
        if self.overlap == IN_TURN:
            return 1 / (self.model_s + self.prep_s + self.fetch_s)
        if self.overlap == WORKERS:
            return 1 / max(self.model_s, self.prep_s + self.fetch_s)
        return 1 / max(self.model_s, self.prep_s, self.fetch_s)

    def changed(self, cpus: float = 1.0, cached: float = 0.0, disk: float = 1.0) -> Step:
        """Return the step with so many times the CPUs and the speed of the disk, and this part of the data cached.

        A loop that loads its own data uses one CPU. With more it is taken to have as many workers.
        """
        fetch_s = self.fetch_s * (1 - cached) / disk
        if self.overlap != IN_TURN or cpus == 1.0:
            return replace(self, prep_s=self.prep_s / cpus, fetch_s=fetch_s)
        return Step(self.model_s, self.prep_s / cpus, fetch_s / cpus, WORKERS)

    @property
    def cache_needed(self) -> float:
        """The least part of the data that must be cached for the loop to be as fast as with all of it."""
        if self.overlap == IN_TURN:
            return 1.0 if self.fetch_s else 0.0
        # How long reading may take before it slows the loop.
        allowed_s = max(self.model_s, self.prep_s) - (self.prep_s if self.overlap == WORKERS else 0.0)
        return max(0.0, 1 - allowed_s / self.fetch_s) if self.fetch_s else 0.0


def step_of(
    synthetic_rate: float, cached_rate: float, real_rate: float, loading_rate: float, overlap: str
) -> Step:
    """Return the parts of a step from the rates of a loop, and from that of its loader with cached data and no model.

    What the model hides cannot be seen: reading that slows nothing counts as 0.
    """
    model_s = 1 / synthetic_rate
    if overlap == IN_TURN:
        prep_s = max(0.0, 1 / cached_rate - model_s)
        return Step(model_s, prep_s, max(0.0, 1 / real_rate - 1 / cached_rate), overlap)
    prep_s = 1 / loading_rate
    if real_rate * HELPS >= min(synthetic_rate, loading_rate):
        return Step(model_s, prep_s, 0.0, overlap)
    fetch_s = 1 / real_rate - (prep_s if overlap == WORKERS else 0.0)
    return Step(model_s, prep_s, max(0.0, fetch_s), overlap)


def overlap_of(synthetic_rate: float, cached_rate: float, loading_rate: float, workers: int | None) -> str:
    """Return which parts of a step overlap. `workers`: the loader's number of workers; None if it has no such number.

    A loader without that number overlaps with the model if the loop is faster than both of them in turn.
    """
    if workers is not None:
        return WORKERS if workers else IN_TURN
    in_turn_s = 1 / synthetic_rate + 1 / loading_rate
    together_s = max(1 / synthetic_rate, 1 / loading_rate)
    return IN_TURN if 1 / cached_rate > (in_turn_s + together_s) / 2 else PIPELINED


class Change(NamedTuple):
    """One change, and the speed then: so many CPUs, a part of the data in a cache, or a disk so many times as fast."""

    # "cpus", "cache" or "disk".
    subject: str
    to: float
    rate: float
    # How many times as fast as now.
    speedup: float


def changes(step: Step, cpus: int, scaling: float = 1.0) -> Iterator[Change]:
    """Yield the single changes to a loop on so many CPUs, each with its speed.

    `scaling`: the part of a further CPU that speeds preparation up.
    """
    in_turn = step.overlap == IN_TURN
    for count in sorted({2 * cpus, 4 * cpus} | ({cpus} if in_turn and cpus > 1 else set())):
        ratio = float(count) if in_turn else 1 + scaling * (count / cpus - 1)
        yield _change("cpus", count, step, step.changed(cpus=ratio))
    for cached in (0.5, 1.0):
        yield _change("cache", cached, step, step.changed(cached=cached))
    for disk in (2.0, 4.0):
        yield _change("disk", disk, step, step.changed(disk=disk))


def best(options: Iterator[Change] | list[Change]) -> Change | None:
    """Return the change that helps most, or the first that helps about as much; None if none makes the loop faster."""
    greatest: Change | None = None
    for change in options:
        if change.speedup >= HELPS and (greatest is None or change.speedup > greatest.speedup * HELPS):
            greatest = change
    return greatest


def divided(wait: float, fetch_s: float, prepare_s: float) -> tuple[float, float]:
    """Divide the part of the time that a loop waits in the proportion of reading and preparation."""
    total_s = fetch_s + prepare_s
    if not (total_s > 0 and math.isfinite(total_s)):
        return 0.0, 0.0
    return wait * fetch_s / total_s, wait * prepare_s / total_s


def _change(subject: str, to: float, now: Step, then: Step) -> Change:
    return Change(subject, to, then.rate, then.rate / now.rate)
