"""The waits of a loop for its loader: how long it waits, and for which of reading and preparation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from gavel.training.data.counters import Counts, counters_of
from gavel.training.data.stalls import divided
from gavel.training.environment import processes_of_rank

# Waits are those of the last minute of steps, so that they follow a change: data that is cached after the first epoch,
# or a disk that becomes slow. Steps may be long, so the loop must also have waited for some batches since.
RECENT_S = 60.0
RECENT_MARKS = 20
# The least time of steps between two marks.
MARK_S = 1.0


class Mark(NamedTuple):
    """The waits and the counts of a loop after so many seconds of steps."""

    stepping_s: float = 0.0
    waited_s: float = 0.0
    counts: Counts = Counts()


class Waits:
    """The time that a loop has waited for the batches of a loader, without the first one of the lease.

    Only the loop adds to it.
    """

    def __init__(self, loader: object = None, waited_s: float = 0.0) -> None:
        self.waited_s = waited_s
        self._loader: Any = loader
        self._counters = counters_of(loader)
        self._marks = deque([Mark()])

    def measured(self, stepping_s: float, step_s: float | None) -> dict[str, float]:
        """Return what is known after so many seconds of steps, by the keys of `measured` in progress-RANK.json.

        The waits and the part of cached samples are recent; rates are those of the whole time.
        """
        counts = Counts() if self._counters is None else self._counters.read()
        waited_s = self.waited_s
        since = self._mark(Mark(stepping_s, waited_s, counts))
        wait = min((waited_s - since.waited_s) / (stepping_s - since.stepping_s), 1.0)
        values = {"wait": wait}
        if step_s and waited_s < stepping_s:
            values["gpu_rate"] = 1 / (step_s * (1 - waited_s / stepping_s))
        if counts.samples:
            recent = Counts(*(now - before for now, before in zip(counts, since.counts)))
            values |= _of_samples(recent if recent.samples else counts, wait)
            if counts.bytes:
                values["sample_bytes"] = counts.bytes / counts.samples
        workers, batch = (getattr(self._loader, name, None) for name in ("num_workers", "batch_size"))
        if workers == 0:
            # A loop that loads its own data has no rate of loading beside its own.
            values["workers"] = 0.0
        elif counts.samples and isinstance(workers, int) and isinstance(batch, int) and batch > 0:
            values |= dict(_rates(counts, workers / batch))
            values["workers"] = float(workers * processes_of_rank())
        return values

    def _mark(self, now: Mark) -> Mark:
        """Keep this mark if the loop has waited since the last one, and return that from which waits are recent."""
        marks = self._marks
        while len(marks) > RECENT_MARKS and now.stepping_s - marks[1].stepping_s >= RECENT_S:
            marks.popleft()
        if now.waited_s > marks[-1].waited_s and now.stepping_s - marks[-1].stepping_s >= MARK_S:
            marks.append(now)
        return marks[0]


def _of_samples(counts: Counts, wait: float) -> dict[str, float]:
    fetch, prep = divided(wait, counts.fetch_s, counts.prepare_s)
    values = {"cached": counts.hits / counts.samples}
    if counts.fetch_s + counts.prepare_s > 0:
        values |= {"fetch": fetch, "prep": prep}
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
