"""Workloads of your own: the jobs of a `WorkloadSpec`, drawn with a seed. Named workloads are in named.py.

Rules: the same spec, table and seed give the same jobs. Arrivals, sizes of jobs and everything else have separate
random streams, so that another rate keeps the jobs, and other tenants keep the sizes of the jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from random import Random
from typing import TypeVar

from traces.errors import BadWorkload, nearest, show
from traces.throughputs import Throughputs
from traces.trace import Trace, TraceJob

DAY_S = 86_400.0
Chances = Mapping[str, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Duration:
    """A branch of the distribution of durations on the reference type: log-uniform between two times."""

    chance: float
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """The description of a workload. Chances need not sum to one; only their ratios count.

    Without `job_types`, all types of the table have equal chances; without `tenants`, jobs have no tenant. At an
    infinite rate, all jobs arrive at 0. `widths` are numbers of GPUs. `daily_swing` is a fraction of the mean rate: the
    rate is above its mean by so much at `busiest_h` o'clock, and below it by so much half a day later. The fraction
    `deadline_share` of the jobs has deadlines: the duration times one of the `deadline_factors`. Of all jobs, the
    fraction `elastic_share` may run on any number of GPUs for which the table has rates of the job's type.
    """

    rate_per_h: float
    job_types: Chances = field(default_factory=dict)
    widths: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})
    durations: tuple[Duration, ...] = (Duration(0.8, 1_800, 60_000), Duration(0.2, 60_000, 600_000))
    weights: Mapping[float, float] = field(default_factory=lambda: {1.0: 1.0})
    tenants: Chances = field(default_factory=dict)
    deadline_factors: Mapping[float, float] = field(default_factory=dict)
    deadline_share: float = 1.0
    elastic_share: float = 0.0
    daily_swing: float = 0.0
    busiest_h: float = 15.0
    id_prefix: str = ""

    def __post_init__(self) -> None:
        """Refuse values from which no job can be drawn."""
        if not self.rate_per_h > 0:
            raise BadWorkload(f"is {self.rate_per_h}", field="rate_per_h", hint="give jobs per hour, above 0")
        for name in ("deadline_share", "elastic_share", "daily_swing"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadWorkload(
                    f"is {getattr(self, name)}", field=name, hint="give a fraction, from 0 to 1"
                )
        if not 0 <= self.busiest_h < 24:
            raise BadWorkload(
                f"is {self.busiest_h}", field="busiest_h", hint="give an hour, from 0 to below 24"
            )
        if not self.durations:
            raise BadWorkload("is empty", field="durations", hint="give at least one branch")
        for branch in self.durations:
            if not 0 < branch.from_s <= branch.to_s < math.inf:
                branch_s = f"from {branch.from_s} to {branch.to_s} s"
                raise BadWorkload(branch_s, field="durations", hint="give 0 < from_s ≤ to_s")
        _check_chances("durations", [branch.chance for branch in self.durations])
        for name in ("job_types", "widths", "weights", "tenants", "deadline_factors"):
            chances = getattr(self, name)
            if chances or name in ("widths", "weights"):
                _check_chances(name, list(chances.values()))
        for name in ("widths", "weights", "deadline_factors"):
            for value in getattr(self, name):
                if not 0 < value < math.inf:
                    raise BadWorkload(f"holds {value}", field=name, hint="give positive numbers")


def generate(spec: WorkloadSpec, throughputs: Throughputs, seed: int) -> Iterator[TraceJob]:
    """Return the jobs of this workload, in order of arrival, without end."""
    types_of = {
        gpus: _types_of(spec, throughputs, gpus) for gpus, chance in spec.widths.items() if chance > 0
    }
    widths_of = {job_type: throughputs.widths(job_type) for types in types_of.values() for job_type in types}
    return _jobs(spec, throughputs, types_of, widths_of, seed)


def trace_of(
    jobs: Iterator[TraceJob], *, source: str, count: int | None = None, end_s: float = math.inf
) -> Trace:
    """Return the part of an endless workload that arrives before `end_s`, at most `count` jobs, as a trace."""
    if count is None and end_s == math.inf:
        raise BadWorkload("has no end", hint="give count or end_s")
    return Trace(tuple(islice(takewhile(lambda job: job.arrival_s < end_s, jobs), count)), source)


def _jobs(
    spec: WorkloadSpec,
    throughputs: Throughputs,
    types_of: Mapping[int, Chances],
    widths_of: Mapping[str, tuple[int, ...]],
    seed: int,
) -> Iterator[TraceJob]:
    sizes, others = (Random(f"{spec.id_prefix}/{stream}/{seed}") for stream in ("sizes", "people"))
    for number, arrival_s in enumerate(_arrivals(spec, Random(f"{spec.id_prefix}/arrivals/{seed}"))):
        gpus = _draw(sizes, spec.widths)
        job_type = _draw(sizes, types_of[gpus])
        branch = sizes.choices(spec.durations, [branch.chance for branch in spec.durations])[0]
        duration_s = branch.from_s * (branch.to_s / branch.from_s) ** sizes.random()
        has_deadline = others.random() < spec.deadline_share
        is_elastic = others.random() < spec.elastic_share
        factor = _draw(others, spec.deadline_factors) if spec.deadline_factors else math.nan
        yield TraceJob(
            id=f"{spec.id_prefix}{number}",
            arrival_s=arrival_s,
            job_type=job_type,
            gpus=gpus,
            steps=duration_s * throughputs.reference_rate(job_type, gpus),
            duration_s=duration_s,
            weight=_draw(others, spec.weights),
            tenant=_draw(others, spec.tenants) if spec.tenants else "",
            deadline_s=factor * duration_s if has_deadline and spec.deadline_factors else None,
            gpus_min=widths_of[job_type][0] if is_elastic else None,
            gpus_max=widths_of[job_type][-1] if is_elastic else None,
        )


def _arrivals(spec: WorkloadSpec, rng: Random) -> Iterator[float]:
    """Yield the times of a Poisson process from 0 on: drawn at the rate of the busiest hour, then thinned out."""
    arrival_s = 0.0
    while True:
        arrival_s -= math.log(1 - rng.random()) * 3600 / (spec.rate_per_h * (1 + spec.daily_swing))
        if spec.rate_per_h == math.inf:
            yield 0.0
            continue
        phase = 2 * math.pi * (arrival_s / DAY_S - spec.busiest_h / 24)
        if rng.random() * (1 + spec.daily_swing) <= 1 + spec.daily_swing * math.cos(phase):
            yield arrival_s


def _types_of(spec: WorkloadSpec, throughputs: Throughputs, gpus: int) -> Chances:
    """Return the job types that run at this width somewhere, with their chances."""
    chances = spec.job_types or dict.fromkeys(throughputs.job_types, 1.0)
    for name in chances:
        if name not in throughputs.job_types:
            hint = nearest(name, throughputs.job_types)
            raise BadWorkload(f"{show(name)} is not in the throughput table", field="job_types", hint=hint)
    runnable = {
        name: chance for name, chance in chances.items() if throughputs.reference_rate(name, gpus) > 0
    }
    if not any(runnable.values()):
        raise BadWorkload(
            f"no job type of the table runs on {gpus} GPUs", field="widths", hint="leave this width out"
        )
    return runnable


def _draw(rng: Random, chances: Mapping[T, float]) -> T:
    return rng.choices(list(chances), list(chances.values()))[0]


def _check_chances(name: str, chances: list[float]) -> None:
    if not all(0 <= chance < math.inf for chance in chances) or not sum(chances) > 0:
        raise BadWorkload(
            f"has the chances {chances}", field=name, hint="give numbers ≥ 0, at least one above 0"
        )
