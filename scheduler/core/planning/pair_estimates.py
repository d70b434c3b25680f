"""Estimated rates of pairs: what the table and measurements of a rate book imply for the pairs that they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scheduler.model.pair_estimate import Estimates, Floats, complete
from scheduler.model.settings import Settings
from scheduler.model.throughput import RateBook

# Only so many job types enter the estimate, those with most known pairs: it takes time that grows with their cube.
TYPES_MAX = 64
# Fractions are rounded to so many digits before they enter, so that reports that change little change no estimate.
DIGITS = 2
# Policies count on a pair that was never seen by so many standard deviations less than its estimate.
CAUTION = 0.5


class Estimate(NamedTuple):
    """The estimated rates of two packed jobs, as parts of their rates alone, and the standard deviations."""

    first: float
    second: float
    first_sd: float
    second_sd: float

    @property
    def cautious(self) -> tuple[float, float]:
        """Both parts, lowered by their uncertainty."""
        return max(self.first - CAUTION * self.first_sd, 0.0), max(
            self.second - CAUTION * self.second_sd, 0.0
        )


class PairEstimates:
    """The estimates for one width, from all pairs of that width whose rates are known."""

    def __init__(self, book: RateBook, settings: Settings, gpus: int) -> None:
        """Estimate what the book lacks. Measurements count once they are trusted."""
        self._alone: dict[tuple[str, str], float] = {}
        known = _known_fractions(book, settings, gpus, self._alone)
        self._types = {name: row for row, name in enumerate(_best_known(known))}
        self._worker_types = {name: row for row, name in enumerate(sorted({key[0] for key in known}))}
        fraction = np.full((len(self._types), len(self._types), len(self._worker_types)), np.nan)
        for (worker_type, job_type, partner), part in known.items():
            if job_type in self._types and partner in self._types:
                cell = self._types[job_type], self._types[partner], self._worker_types[worker_type]
                fraction[cell] = part
        self._fraction: Floats = np.round(fraction, DIGITS)
        self._completed: Estimates | None = None

    def take_over(self, older: PairEstimates) -> None:
        """Keep the older estimates, which took time, if the same pairs are known."""
        same = (self._types, self._worker_types) == (older._types, older._worker_types)
        if same and np.array_equal(self._fraction, older._fraction, equal_nan=True):
            self._completed = older._completed

    def alone(self, job_type: str, worker_type: str) -> float:
        """Return the rate of a type alone; 0 if it is not known."""
        return self._alone.get((job_type, worker_type), 0.0)

    def unknown(self) -> Iterator[tuple[str, str, str]]:
        """Yield worker type, job type and partner of all pairs whose rates are not known."""
        for w, worker_type in enumerate(self._worker_types):
            for a, job_type in enumerate(self._types):
                for b, partner in enumerate(self._types):
                    if np.isnan(self._fraction[a, b, w]):
                        yield worker_type, job_type, partner

    def of(self, worker_type: str, first: str, second: str, *, unseen: bool = False) -> Estimate | None:
        """Return the estimate for two types. `unseen`: also if no pair of one of them was ever seen."""
        a, b = self._types.get(first), self._types.get(second)
        w = self._worker_types.get(worker_type)
        if a is None or b is None or w is None:
            return None
        if self._completed is None:
            self._completed = complete(self._fraction)
        every = self._completed
        cells = (a, b, w), (b, a, w)
        if np.isnan([every.fraction[cell] for cell in cells]).any():
            return None
        if not (unseen or (every.probed[a] and every.probed[b])):
            return None
        (part, other), (sd, other_sd) = (
            [float(each[cell]) for cell in cells] for each in (every.fraction, every.sd)
        )
        return Estimate(part, other, sd, other_sd)


def _best_known(known: dict[tuple[str, str, str], float]) -> list[str]:
    """Return the job types of these fractions by name; of too many, those with the most."""
    count = Counter(name for key in known for name in key[1:])
    return sorted(sorted(count, key=lambda name: (-count[name], name))[:TYPES_MAX])


def _known_fractions(
    book: RateBook, settings: Settings, gpus: int, alone: dict[tuple[str, str], float]
) -> dict[tuple[str, str, str], float]:
    """Return what is known: by worker type, job type and partner. Enter the rates alone into `alone`."""
    trust_after_s = settings.trust_after_s
    rates: dict[tuple[str, str, str], float] = {}
    for (worker_type, job_type, partner, width), (rate, _) in book.pairs.items():
        if width == gpus:
            rates[worker_type, job_type, partner] = rate
    for (job_type, width, worker_type), rate in book.solo.items():
        if width == gpus:
            alone[job_type, worker_type] = rate
    if settings.learn_rates:
        for key, measured in book.measured.items():
            if key.gpus != gpus or key.spread or key.plan:
                continue
            if key.partner:
                cell = (key.worker_type, key.job_type, key.partner)
                if cell in rates or measured.observed_s >= trust_after_s:
                    rates[cell] = book.rate(key, rates.get(cell), trust_after_s)
            else:
                place = (key.job_type, key.worker_type)
                alone[place] = book.rate(key, alone.get(place), trust_after_s)
    return {
        cell: rate / alone[cell[1], cell[0]]
        for cell, rate in rates.items()
        if alone.get((cell[1], cell[0]), 0.0) > 0
    }


def estimates_of(book: RateBook, settings: Settings, gpus: int) -> PairEstimates:
    """Return the estimates for this width, computed again only if what is known has changed."""
    key = (book.version, settings.learn_rates, settings.trust_after_s)
    known: tuple[tuple[object, ...], PairEstimates] | None = book.estimates.get(gpus)
    if known is not None and known[0] == key:
        return known[1]
    estimates = PairEstimates(book, settings, gpus)
    if known is not None:
        estimates.take_over(known[1])
    book.estimates[gpus] = key, estimates
    return estimates
