"""The waits of a loop for its loader: how long it waits, and for which of reading and preparation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gavel.training.data.counters import Counts, counters_of
from gavel.training.data.stalls import divided


class Waits:
    """The time that a loop has waited for the batches of a loader, without the first one. Only the loop adds to it."""

    def __init__(self, loader: object = None, waited_s: float = 0.0) -> None:
        self.waited_s = waited_s
        self._loader: Any = loader
        self._counters = counters_of(loader)

    def measured(self, stepping_s: float, step_s: float | None) -> dict[str, float]:
        """Return what is known after so many seconds of steps, by the keys of `measured` in progress-RANK.json."""
        wait = min(self.waited_s / stepping_s, 1.0)
        values = {"wait": wait}
        if step_s and wait < 1.0:
            values["gpu_rate"] = 1 / (step_s * (1 - wait))
        counts = None if self._counters is None else self._counters.read()
        if counts is not None and counts.samples:
            values |= _of_samples(counts, wait)
            workers, batch = (getattr(self._loader, name, None) for name in ("num_workers", "batch_size"))
            # A loop that loads its own data has no rate of loading beside its own.
            if isinstance(workers, int) and isinstance(batch, int) and workers > 0 and batch > 0:
                values |= dict(_rates(counts, workers / batch))
        return values


def _of_samples(counts: Counts, wait: float) -> dict[str, float]:
    fetch, prep = divided(wait, counts.fetch_s, counts.prepare_s)
    values = {"cached": counts.hits / counts.samples}
    if counts.fetch_s + counts.prepare_s > 0:
        values |= {"fetch": fetch, "prep": prep}
    if counts.bytes:
        values["sample_bytes"] = counts.bytes / counts.samples
    return values


def _rates(counts: Counts, workers_per_sample: float) -> Iterator[tuple[str, float]]:
    """Yield the steps per second for which all workers could prepare, and read from storage and from the cache."""
    for name, samples, time_s in (
        ("prep_rate", counts.samples, counts.prepare_s),
        ("storage_rate", counts.samples - counts.hits, counts.fetch_s - counts.hit_s),
        ("cache_rate", counts.hits, counts.hit_s),
    ):
        if samples > 0 and time_s > 0:
            yield name, samples / time_s * workers_per_sample
