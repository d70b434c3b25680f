"""How fast every kind of job runs: alone, spread over nodes, two to a GPU, by its CPUs, and by each of its plans.

Rules: rates are steps per second of the whole job (all its GPUs together), finite and not negative. A rate of 0, or no
entry, means that the job does not fit. Pairs are stored in both orders, so that one look-up is enough. A job type has
either rates, which rates by CPUs may complete, or plans. A table is immutable; `restrict` and `priced` return a new
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from traces.cpu_rates import CpuRates, Point
from traces.errors import BadTable, nearest, show
from traces.limits import MEMORY_GB, PRICE, RATE, Limits
from traces.plans import Plan
from traces.trace import GPUS_MAX

# Job type, GPUs and worker type.
Key = tuple[str, int, str]
# The worker type, then job type and GPUs of either job.
PairKey = tuple[str, str, int, str, int]
PairRates = tuple[float, float]

# The rows that a scheduler takes. For one job: job type, GPUs, worker type and rate.
Row = tuple[str, int, str, float]
# For a pair: the worker type, both job types, the number of GPUs that the jobs share, and both rates.
PairRow = tuple[str, str, str, int, float, float]
# For rates by CPUs, which the scheduler does not take: job type, GPUs, worker type and the points of the curve.
CpuRow = tuple[str, int, str, tuple[Point, ...]]

# Durations in published traces were measured on this type.
REFERENCE = "v100"


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Rates by job type, GPUs and worker type; prices and memory of the types, if known.

    `solo` has the rates on as few nodes as possible, `unconsolidated` the rates of gangs spread over more nodes.
    """

    solo: Mapping[Key, float]
    unconsolidated: Mapping[Key, float] = field(default_factory=dict)
    pairs: Mapping[PairKey, PairRates] = field(default_factory=dict)
    prices_per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    memory_gb: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    plans: Mapping[Key, Plan] = field(default_factory=dict)
    # The rates of `solo` hold where nothing is known of CPUs.
    cpu_rates: Mapping[Key, CpuRates] = field(default_factory=dict)
    worker_types: tuple[str, ...] = field(init=False)
    job_types: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check every figure, complete the pairs, and freeze the table."""
        for key, rate in (*self.solo.items(), *self.unconsolidated.items()):
            _check_names(key[0], key[2])
            _check_width(key[0], key[1])
            _check_figure(f"rate of {show(key)}", rate, RATE)
        for key in self.plans:
            _check_names(key[0], key[2])
        for kind, price in self.prices_per_gpu_hour.items():
            _check_figure(f"price of {show(kind)}", price, PRICE)
        for kind, memory_gb in self.memory_gb.items():
            _check_figure(f"memory of {show(kind)}", memory_gb, MEMORY_GB)
        if both := {key[0] for key in self.plans} & {key[0] for key in self.solo}:
            raise BadTable(f"{show(min(both))} has rates and plans", field="plans", hint="give one of them")
        for key in self.cpu_rates:
            if not self.solo.get(key):
                hint = "give its rate without CPUs, too"
                raise BadTable(f"{show(key)} has rates by CPUs only", field="cpus_per_gpu", hint=hint)
        keys = (*self.solo, *self.unconsolidated, *self.plans)
        _set(self, "job_types", tuple(dict.fromkeys(key[0] for key in keys)))
        _set(self, "worker_types", tuple(dict.fromkeys(key[2] for key in keys)))
        _set(self, "pairs", _both_orders(self.pairs))
        for name in (
            *("solo", "unconsolidated", "pairs", "plans", "cpu_rates"),
            "prices_per_gpu_hour",
            "memory_gb",
        ):
            _set(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the tables as plain dictionaries, because frozen ones cannot be pickled."""
        rates = dict(self.solo), dict(self.unconsolidated), dict(self.pairs)
        prices, memory_gb = dict(self.prices_per_gpu_hour), dict(self.memory_gb)
        return Throughputs, (*rates, prices, memory_gb, self.source, dict(self.plans), dict(self.cpu_rates))

    def rate(self, job_type: str, gpus: int, worker_type: str, consolidated: bool = True) -> float:
        """Return steps per second; 0 if the job does not fit or was not measured. A job on one GPU is never spread."""
        key = (job_type, gpus, worker_type)
        if (plan := self.plans.get(key)) is not None:
            return plan.rate
        rates = self.solo if consolidated or gpus == 1 else self.unconsolidated
        return rates.get(key, 0.0)

    def gpus_together(self, job_type: str, gpus: int, worker_type: str) -> int:
        """Return how many GPUs the job's plan for these GPUs has on each node; 1 if it has no plan for them."""
        plan = self.plans.get((job_type, gpus, worker_type))
        return 1 if plan is None else plan.gpus_together

    def widths(self, job_type: str) -> tuple[int, ...]:
        """Return the numbers of GPUs on which this job type runs anywhere, ascending."""
        alone = {key[1] for key, rate in self.solo.items() if key[0] == job_type and rate > 0}
        return tuple(sorted(alone | {key[1] for key in self.plans if key[0] == job_type}))

    def reference_rate(self, job_type: str, gpus: int) -> float:
        """Return the rate of a job alone on the reference type, V100.

        If the job has no rate on V100, return its rate on the first worker type where it has one; without any, 0.
        """
        kinds = sorted(self.worker_types, key=lambda kind: kind != REFERENCE)
        rates = (self.rate(job_type, gpus, kind) for kind in kinds)
        return next((rate for rate in rates if rate > 0), 0.0)

    def restrict(self, worker_types: Iterable[str]) -> Throughputs:
        """Return the table of these worker types only; refuse a type that the table does not have."""
        kinds = set(worker_types)
        for kind in sorted(kinds - set(self.worker_types)):
            hint = nearest(kind, self.worker_types)
            raise BadTable(
                f"{show(kind)} is not in {self.source or 'the table'}", field="worker_type", hint=hint
            )
        return replace(
            self,
            solo={key: rate for key, rate in self.solo.items() if key[2] in kinds},
            unconsolidated={key: rate for key, rate in self.unconsolidated.items() if key[2] in kinds},
            pairs={key: rates for key, rates in self.pairs.items() if key[0] in kinds},
            prices_per_gpu_hour={k: v for k, v in self.prices_per_gpu_hour.items() if k in kinds},
            memory_gb={k: v for k, v in self.memory_gb.items() if k in kinds},
            plans={key: plan for key, plan in self.plans.items() if key[2] in kinds},
            cpu_rates={key: curve for key, curve in self.cpu_rates.items() if key[2] in kinds},
        )

    def priced(self, prices_per_gpu_hour: Mapping[str, float]) -> Throughputs:
        """Return the table with these prices. Worker types without a price among them keep the price that they have."""
        known = {kind: price for kind, price in prices_per_gpu_hour.items() if kind in self.worker_types}
        return replace(self, prices_per_gpu_hour={**self.prices_per_gpu_hour, **known})

    @classmethod
    def from_rows(
        cls,
        solo: Iterable[Row],
        unconsolidated: Iterable[Row],
        pairs: Iterable[PairRow],
        source: str,
        plans: Iterable[Plan] = (),
        cpu_rates: Iterable[CpuRow] = (),
    ) -> Throughputs:
        """Return the table of rows as `rows` returns them; of two rows with the same key, the later one counts."""
        rates_of_pairs: dict[PairKey, PairRates] = {}
        for kind, a, b, gpus, rate_a, rate_b in pairs:
            rates_of_pairs[kind, a, gpus, b, gpus] = (rate_a, rate_b)
            rates_of_pairs[kind, b, gpus, a, gpus] = (rate_b, rate_a)
        alone, spread = ({row[:3]: row[3] for row in rows} for rows in (solo, unconsolidated))
        plan_of = {(plan.job_type, plan.gpus, plan.worker_type): plan for plan in plans}
        curves = {row[:3]: CpuRates(row[3]) for row in cpu_rates}
        return cls(alone, spread, rates_of_pairs, source=source, plans=plan_of, cpu_rates=curves)

    def cpu_rows(self) -> list[CpuRow]:
        """Return the rates by CPUs as rows."""
        return [(*key, curve.points) for key, curve in sorted(self.cpu_rates.items())]

    def rows(self) -> dict[str, Any]:
        """Return the rates as the rows that a scheduler takes.

        Those of plans are left out, because jobs bring them along, and those by CPUs, which its problem does not have.
        """
        return {
            "solo": [(*key, rate) for key, rate in sorted(self.solo.items())],
            "unconsolidated": [(*key, rate) for key, rate in sorted(self.unconsolidated.items())],
            "pairs": [
                (kind, a, b, gpus, *rates)
                for (kind, a, gpus, b, gpus_b), rates in sorted(self.pairs.items())
                if gpus == gpus_b and a <= b
            ],
        }


def _set(table: Throughputs, name: str, value: object) -> None:
    """Set a field of the frozen table while it is built."""
    object.__setattr__(table, name, value)


def _check_names(*names: str) -> None:
    for name in names:
        if not name or not name.isprintable():
            raise BadTable(f"{show(name)} is not a name", hint="use visible characters only")


def _check_width(job_type: str, gpus: int) -> None:
    if not 1 <= gpus <= GPUS_MAX:
        raise BadTable(f"{show(job_type)} with {gpus} GPUs", field="gpus", hint=f"give 1 to {GPUS_MAX}")


def _check_figure(name: str, value: float, limits: Limits) -> None:
    if not limits.admit(value):
        raise BadTable(f"{name} is {value}", hint=f"give {limits}")


def _both_orders(pairs: Mapping[PairKey, PairRates]) -> dict[PairKey, PairRates]:
    """Return every pair in both orders; if it is given in both, the rates must agree."""
    complete = dict(pairs)
    for (kind, a, gpus_a, b, gpus_b), (rate_a, rate_b) in pairs.items():
        _check_names(kind, a, b)
        _check_width(a, gpus_a)
        _check_width(b, gpus_b)
        for rate in (rate_a, rate_b):
            _check_figure(f"rate of {show(a)} with {show(b)} on {show(kind)}", rate, RATE)
        reversed_rates = complete.setdefault((kind, b, gpus_b, a, gpus_a), (rate_b, rate_a))
        if reversed_rates != (rate_b, rate_a):
            raise BadTable(
                f"{show(a)} with {show(b)} on {show(kind)} has other rates than {show(b)} with {show(a)}",
                field="pairs",
                hint="give each pair once, or with the same rates in both orders",
            )
    return complete
