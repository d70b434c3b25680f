"""Rates: what the table says, what was measured, and what to assume of a job type nobody has seen.

A rate is looked up by (job type, GPUs, worker type, consolidated?). In order: the job's own override, then what
was measured, blended in as the measurement grows longer, then the table, then a stated prior. Measurements are
pooled over all jobs of a type.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import msgspec

from scheduler.model.bounds import STEPS, TABLE_RATE

Key = tuple[str, int, str]  # job type, GPUs, worker type
PairKey = tuple[str, str, str, int]  # worker type, job type, its partner's, GPUs of each
DRIFT = 0.1  # a rate that has come so far from what the last allocation was asked with wants another one
LOOK_S = 1e-6  # a look that is shorter measures nothing, and makes a rate of any size out of any steps
SAME = 0.01  # a measurement this close to what was believed changes nothing: noise decides nothing


class Measured(msgspec.Struct):
    """An exponential average of steps per second, and how much stepping it rests on."""

    rate: float
    observed_s: float
    believed: float  # what lookups say: follows `rate` in steps that are worth noticing
    asked: float = 0.0  # what they said when an allocation was last asked for; 0: not since it was measured


class RateKey(NamedTuple):
    """What a measurement is of."""

    job_type: str
    gpus: int
    worker_type: str
    partner: str = ""  # the packed partner's job type
    spread: bool = False  # over more nodes than the gang needs


class RateRows(msgspec.Struct, array_like=True):
    """A rate book in plain lists, as a snapshot keeps it."""

    solo: list[tuple[Key, float]]
    unconsolidated: list[tuple[Key, float]]
    pairs: list[tuple[PairKey, tuple[float, float]]]
    measured: list[tuple[RateKey, Measured]]
    known: set[str]


class RateBook(msgspec.Struct):
    """All rates the scheduler knows."""

    solo: dict[Key, float] = msgspec.field(default_factory=dict)
    unconsolidated: dict[Key, float] = msgspec.field(default_factory=dict)
    pairs: dict[PairKey, tuple[float, float]] = msgspec.field(default_factory=dict)
    measured: dict[RateKey, Measured] = msgspec.field(default_factory=dict)
    known: set[str] = msgspec.field(default_factory=set)  # job types of the table
    version: int = 0  # grows when a lookup may answer differently

    def put(self, solo: list[tuple[str, int, str, float]], spread: bool = False) -> None:
        """Take rows of the table in."""
        table = self.unconsolidated if spread else self.solo
        for job_type, gpus, worker_type, rate in solo:
            table[job_type, gpus, worker_type] = rate
            self.known.add(job_type)
        self.version += 1

    def put_pairs(self, rows: list[tuple[str, str, str, int, float, float]]) -> None:
        """Take pair rates in; each is known both ways round."""
        for worker_type, a, b, gpus, rate_a, rate_b in rows:
            self.pairs[worker_type, a, b, gpus] = (rate_a, rate_b)
            self.pairs[worker_type, b, a, gpus] = (rate_b, rate_a)
        self.version += 1

    def told(self, job_type: str, gpus: int, worker_type: str, spread: bool = False) -> float | None:
        """What the table says; None where it says nothing. A table without spread rates means: no difference."""
        key = (job_type, gpus, worker_type)
        if spread:
            rate = self.unconsolidated.get(key)
            if rate is not None:
                return rate
        return self.solo.get(key)

    def rate(self, key: RateKey, prior: float | None, trust_after_s: float) -> float:
        """The best present estimate, starting from `prior` (the table's or an assumed rate)."""
        seen = self.measured.get(key)
        if seen is None:
            return prior or 0.0
        if not prior:
            return seen.believed
        confidence = min(seen.observed_s / trust_after_s, 1.0)
        if abs(seen.believed - prior) <= SAME * prior:
            return prior
        return confidence * seen.believed + (1.0 - confidence) * prior

    def observe(self, key: RateKey, steps: float, stepping_s: float, trust_after_s: float) -> bool:
        """Pool one measurement; True when it moved an estimate enough to matter for an allocation."""
        if not (stepping_s >= LOOK_S and 0 <= steps <= STEPS.most):
            return False
        rate = steps / stepping_s
        if not TABLE_RATE.admits(rate):
            return False
        seen = self.measured.get(key)
        if seen is None:
            self.measured[key] = Measured(rate, stepping_s, rate)
            self.version += 1
            return True
        sure = seen.observed_s >= trust_after_s
        # a longer look weighs more; what is old fades, so that a changed job type is noticed
        weight = stepping_s / (stepping_s + min(seen.observed_s, 10.0 * trust_after_s))
        seen.rate += weight * (rate - seen.rate)
        seen.observed_s += stepping_s
        before = seen.believed
        if sure and abs(seen.rate - before) <= SAME * before:
            return False
        seen.believed = seen.rate
        self.version += 1
        drifted = seen.asked > 0 and abs(seen.rate - seen.asked) > DRIFT * seen.asked
        return not sure or drifted or abs(seen.rate - before) > 5 * SAME * before

    def note_asked(self) -> None:
        """The next allocation is worked out with what lookups say now."""
        for seen in self.measured.values():
            seen.asked = seen.believed

    def forget(self, job_types: Container[str]) -> None:
        """Drop what was measured of these types, alone or as partners."""
        self.measured = {
            key: seen
            for key, seen in self.measured.items()
            if key.job_type not in job_types and key.partner not in job_types
        }
        self.version += 1

    def rows(self) -> RateRows:
        """This book in plain lists."""
        return RateRows(
            sorted(self.solo.items()),
            sorted(self.unconsolidated.items()),
            sorted(self.pairs.items()),
            sorted(self.measured.items(), key=lambda item: item[0]),
            self.known,
        )

    @classmethod
    def from_rows(cls, rows: RateRows) -> RateBook:
        """The book that `rows` was made of."""
        return cls(
            dict(rows.solo), dict(rows.unconsolidated), dict(rows.pairs), dict(rows.measured), rows.known
        )
