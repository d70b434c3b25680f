"""Rates: from the throughput table, from measurements, and assumed ones for unknown job types.

A rate is looked up by (job type, GPUs, worker type, consolidated?). The job's own override comes first; then the
measured rate, whose weight grows with the length of the measurement; then the table; then the prior from the settings.
Measurements are pooled over all jobs of a type.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from scheduler.model.bounds import STEPS, TABLE_RATE

Key = tuple[str, int, str]  # type, GPUs, worker type
# Worker type, job type, the partner's job type, GPUs of each.
PairKey = tuple[str, str, str, int]
# A new allocation is needed when a measured rate moves by this part from the rate that the last allocation used.
DRIFT = 0.1
# Shorter observations are ignored: steps in almost no time would give an enormous rate.
OBSERVATION_MIN_S = 1e-6
# Fewer job types say little about the speed of one worker type relative to another.
TYPES_FOR_A_RATIO = 3
# Measurements that differ from the estimate by no more than this part count as equal to it.
NOISE = 0.01


class Measured(msgspec.Struct):
    """A measured rate: an exponential average."""

    # In steps per second.
    rate: float
    # The time spent on the steps that were measured.
    observed_s: float
    # The rate that lookups return: it follows `rate` in steps large enough to matter.
    believed: float
    # The value of `believed` at the last allocation. 0: first measured after it.
    asked: float = 0.0


class RateKey(NamedTuple):
    """The key of a measurement: the way of running that was measured."""

    job_type: str
    gpus: int
    worker_type: str
    partner: str = ""  # the partner's job type
    # Whether the gang was on more nodes than it needs.
    spread: bool = False
    # The label of the plan by which the job ran; empty if it has no plans.
    plan: str = ""


class PlanKey(NamedTuple):
    """A plan that ran out of memory, for all jobs of this user and type."""

    user: str
    job_type: str
    worker_type: str
    gpus: int
    label: str


class RateRows(msgspec.Struct, array_like=True):
    """A rate book in plain lists, as a snapshot keeps it."""

    solo: list[tuple[Key, float]]
    unconsolidated: list[tuple[Key, float]]
    pairs: list[tuple[PairKey, tuple[float, float]]]
    measured: list[tuple[RateKey, Measured]]
    known: set[str]
    struck_out: list[PlanKey] = []


class RateBook(msgspec.Struct):
    """All rates: those of the table, and measured ones."""

    solo: dict[Key, float] = msgspec.field(default_factory=dict)
    unconsolidated: dict[Key, float] = msgspec.field(default_factory=dict)
    pairs: dict[PairKey, tuple[float, float]] = msgspec.field(default_factory=dict)
    measured: dict[RateKey, Measured] = msgspec.field(default_factory=dict)
    # The job types of the table.
    known: set[str] = msgspec.field(default_factory=set)
    # Plans that ran out of memory.
    struck_out: set[PlanKey] = msgspec.field(default_factory=set)
    # By two worker types: see `speed_ratio`. They follow from the table and can be dropped at any time.
    ratios: dict[tuple[str, str], float | None] = msgspec.field(default_factory=dict)
    # By job type: see `first_measured`. They follow from the measurements; None: as after a change of those.
    firsts: dict[str, RateKey] | None = None
    # Increases whenever a lookup may return something else.
    version: int = 0
    # By width: the estimates of pairs that follow from the rest of the book. They can be dropped at any time.
    estimates: dict[int, Any] = msgspec.field(default_factory=dict)

    def put(self, solo: list[tuple[str, int, str, float]], spread: bool = False) -> None:
        """Add rows of a throughput table."""
        table = self.unconsolidated if spread else self.solo
        for job_type, gpus, worker_type, rate in solo:
            table[job_type, gpus, worker_type] = rate
            self.known.add(job_type)
        self.ratios.clear()
        self.version += 1

    def put_pairs(self, rows: list[tuple[str, str, str, int, float, float]]) -> None:
        """Add rates of packed pairs, each under both orders of its members."""
        for worker_type, a, b, gpus, rate_a, rate_b in rows:
            self.pairs[worker_type, a, b, gpus] = (rate_a, rate_b)
            self.pairs[worker_type, b, a, gpus] = (rate_b, rate_a)
        self.version += 1

    def from_table(self, job_type: str, gpus: int, worker_type: str, spread: bool = False) -> float | None:
        """Return the table's rate or None; for a spread gang, the unconsolidated rate, or else the consolidated one."""
        key = (job_type, gpus, worker_type)
        if spread:
            rate = self.unconsolidated.get(key)
            if rate is not None:
                return rate
        return self.solo.get(key)

    def speed_ratio(self, worker_type: str, other: str) -> float | None:
        """Return how many times as fast as on the other worker type the table's jobs are on this one, in the median.

        None if the table has too few job types with rates for both.
        """
        key = worker_type, other
        if key not in self.ratios:
            ratios = [
                (job_type, rate / self.solo[job_type, gpus, other])
                for (job_type, gpus, of_type), rate in self.solo.items()
                if of_type == worker_type and rate > 0 and self.solo.get((job_type, gpus, other), 0.0) > 0
            ]
            enough = len({job_type for job_type, _ in ratios}) >= TYPES_FOR_A_RATIO
            self.ratios[key] = statistics.median([ratio for _, ratio in ratios]) if enough else None
        return self.ratios[key]

    def rate(self, key: RateKey, prior: float | None, trust_after_s: float) -> float:
        """Return the current best estimate. `prior`: the table's rate or an assumed rate; None if there is neither."""
        measured = self.measured.get(key)
        if measured is None:
            return prior or 0.0
        if not prior:
            return measured.believed
        confidence = min(measured.observed_s / trust_after_s, 1.0)
        if abs(measured.believed - prior) <= NOISE * prior:
            return prior
        return confidence * measured.believed + (1.0 - confidence) * prior

    def observe(self, key: RateKey, steps: float, stepping_s: float, trust_after_s: float) -> bool:
        """Pool one measurement. Return whether the estimate changed so much that a new allocation is needed."""
        if not (stepping_s >= OBSERVATION_MIN_S and 0 <= steps <= STEPS.most):
            return False
        rate = steps / stepping_s
        if not TABLE_RATE.admits(rate):
            return False
        measured = self.measured.get(key)
        if measured is None:
            self.measured[key] = Measured(rate, stepping_s, rate)
            self.firsts = None
            self.version += 1
            return True
        trusted = measured.observed_s >= trust_after_s
        # Longer observations weigh more. Old observations fade, so that a change of the job type is noticed.
        weight = stepping_s / (stepping_s + min(measured.observed_s, 10.0 * trust_after_s))
        measured.rate += weight * (rate - measured.rate)
        measured.observed_s += stepping_s
        before = measured.believed
        if trusted and abs(measured.rate - before) <= NOISE * before:
            return False
        measured.believed = measured.rate
        self.version += 1
        drifted = measured.asked > 0 and abs(measured.rate - measured.asked) > DRIFT * measured.asked
        return not trusted or drifted or abs(measured.rate - before) > 5 * NOISE * before

    def first_measured(self, job_type: str) -> RateKey | None:
        """Return the first way, in their order, in which jobs of this type were measured alone and without a plan.

        Of several, any would do for a guess, but after a restart the choice must be the same.
        """
        if self.firsts is None:
            self.firsts = {}
            for key in self.measured:
                if not (key.partner or key.plan):
                    self.firsts[key.job_type] = min(key, self.firsts.get(key.job_type, key))
        return self.firsts.get(job_type)

    def note_asked(self) -> None:
        """Record the current estimates as the rates that the next allocation uses."""
        for measured in self.measured.values():
            measured.asked = measured.believed

    def strike_out(self, plan: PlanKey) -> None:
        """Record that a plan ran out of memory, so that no job uses it again."""
        self.struck_out.add(plan)
        self.version += 1

    def forget(self, job_types: Iterable[str]) -> None:
        """Drop all measurements of these job types, alone or as partners, and their plans that were struck out.

        Measurements of types in the throughput table stay.
        """
        unknown = set(job_types) - self.known
        self.measured = {
            key: measured
            for key, measured in self.measured.items()
            if key.job_type not in unknown and key.partner not in unknown
        }
        self.firsts = None
        self.struck_out = {plan for plan in self.struck_out if plan.job_type not in job_types}
        self.version += 1

    def rows(self) -> RateRows:
        """Return this book as plain lists."""
        return RateRows(
            sorted(self.solo.items()),
            sorted(self.unconsolidated.items()),
            sorted(self.pairs.items()),
            sorted(self.measured.items(), key=lambda item: item[0]),
            self.known,
            sorted(self.struck_out),
        )

    @classmethod
    def from_rows(cls, rows: RateRows) -> RateBook:
        """Restore a book from its rows."""
        return cls(
            dict(rows.solo),
            dict(rows.unconsolidated),
            dict(rows.pairs),
            dict(rows.measured),
            rows.known,
            set(rows.struck_out),
        )
