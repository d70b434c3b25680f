"""The file in which people write a problem down: a cluster, its jobs and their rates.

docs/problem-format.md is its page. What a `Problem` demands of its arrays is asked here of the file first, so that
an error names the place in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gavel.cli.io.document import BadFile, read_document
from gavel.cli.io.fields import Fields, Path, fault, number, sequence
from gavel.cli.io.wording import nearest, quoted, shown
from policies.errors import ProblemError
from policies.problem import ALONE, Columns, Jobs, Problem, Tenant

TOP = ("worker_types", "jobs", "pairs", "tenants", "seed", "now_s")
WORKER_TYPE = ("gpus", "price_per_gpu_hour")
JOB = (
    "id",
    "gpus",
    "weight",
    "tenant",
    "rates",
    "steps_left",
    "waited_s",
    "isolated_s",
    "deadline_s",
    "variants",
)
VARIANT = ("worker_type", "gpus", "rate", "label")
PAIR = ("jobs", "rates")
TENANT = ("name", "weight", "policy")

GPUS_MAX = 1_000_000
SEED_MAX = 2**63 - 1
# YAML aliases can ask for many columns in few bytes.
COLUMNS_MAX = 5_000_000


def read_problem(name: str, seed: int | None = None) -> Problem:
    """The problem in a JSON or YAML file (`-`: standard input); raises `BadFile`."""
    return to_problem(read_document(name), seed)


def to_problem(data: Any, seed: int | None = None) -> Problem:
    """The problem that plain data describes; raises `BadFile`."""
    top = Fields((), data, TOP)
    types = _worker_types(top)
    tenants = _tenants(top)
    jobs = _Jobs(types=list(types), tenants=dict.fromkeys(tenant.name for tenant in tenants))
    for i, item in enumerate(top.items("jobs")):
        jobs.add(("jobs", i), item)
    for i, item in enumerate(top.items("pairs", [])):
        jobs.add_pair(("pairs", i), item)
    own_seed = top.whole("seed", 0, least=0, most=SEED_MAX)
    try:
        return Problem(
            jobs=Jobs(tuple(jobs.rows), **jobs.facts),
            columns=jobs.columns.build(),
            worker_types=tuple(types),
            capacity=np.array([gpus for gpus, _ in types.values()], dtype=float),
            price_per_gpu_hour=np.array([price for _, price in types.values()], dtype=float),
            tenants=tenants,
            seed=own_seed if seed is None else seed,
            now_s=top.number("now_s", 0.0),
        )
    except ProblemError as error:
        raise BadFile(str(error)) from None


def _worker_types(top: Fields) -> dict[str, tuple[int, float]]:
    types = {}
    for path, name, item in top.entries("worker_types"):
        kind = Fields(path, item, WORKER_TYPE)
        gpus = kind.whole("gpus", least=0, most=GPUS_MAX)
        types[name] = (gpus, kind.number_if_known("price_per_gpu_hour", math.nan, least=0.0))
    if not types:
        raise fault(("worker_types",), "must name at least one type")
    return types


def _tenants(top: Fields) -> tuple[Tenant, ...]:
    tenants: dict[str, Tenant] = {}
    for i, item in enumerate(top.items("tenants", [])):
        tenant = Fields(("tenants", i), item, TENANT)
        name, policy = tenant.name("name"), tenant.text("policy", "fairness")
        if name in tenants:
            raise fault((*tenant.path, "name"), f"{quoted(name)} appears twice")
        if policy not in ("fairness", "fifo"):
            raise fault((*tenant.path, "policy"), f'must be "fairness" or "fifo", got {quoted(policy)}')
        tenants[name] = Tenant(name, tenant.number("weight", 1.0, above=0.0), policy)
    return tuple(tenants.values())


@dataclass(slots=True)
class _Columns:
    """Columns under construction."""

    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    worker_type: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    first_rate: list[float] = field(default_factory=list)
    second_rate: list[float] = field(default_factory=list)
    label: list[str] = field(default_factory=list)

    def add(
        self, path: Path, first: int, kind: int, gpus: int, rate: float, *,
        label: str = "", second: int = ALONE, second_rate: float = 0.0,
    ) -> None:  # fmt: skip
        if len(self.first) >= COLUMNS_MAX:
            raise fault(path, f"more than {COLUMNS_MAX:,} ways of running jobs in one file")
        self.first.append(first)
        self.second.append(second)
        self.worker_type.append(kind)
        self.gpus.append(gpus)
        self.first_rate.append(rate)
        self.second_rate.append(second_rate)
        self.label.append(label)

    def build(self) -> Columns:
        return Columns(
            first=np.array(self.first, dtype=np.int64),
            second=np.array(self.second, dtype=np.int64),
            worker_type=np.array(self.worker_type, dtype=np.int64),
            gpus=np.array(self.gpus, dtype=np.int64),
            first_rate=np.array(self.first_rate, dtype=float),
            second_rate=np.array(self.second_rate, dtype=float),
            label=tuple(self.label),
        )


class _Jobs:
    """Jobs and pairs as they are read, in the order of the file."""

    def __init__(self, types: list[str], tenants: Collection[str]) -> None:
        self.kinds = {name: i for i, name in enumerate(types)}
        self.tenants = tenants
        self.rows: dict[str, int] = {}
        self.facts: dict[str, Any] = {
            name: []
            for name in ("gpus", "weight", "tenant", "waited_s", "steps_left", "isolated_s", "deadline_s")
        }
        self.columns = _Columns()
        self.pairs: dict[tuple[int, int, int], Path] = {}

    def add(self, path: Path, item: Any) -> None:
        """One entry of `jobs`."""
        job = Fields(path, item, JOB)
        name = job.name("id")
        if name in self.rows:
            raise fault((*path, "id"), f"{quoted(name)} is the id of jobs[{self.rows[name]}] already")
        row = self.rows[name] = len(self.rows)
        gpus = job.whole("gpus", 1, least=1, most=GPUS_MAX)
        for fact, value in (
            ("gpus", gpus),
            ("weight", job.number("weight", 1.0, above=0.0)),
            ("tenant", self._tenant(job)),
            ("waited_s", job.number("waited_s", 0.0, least=0.0)),
            ("steps_left", job.number_if_known("steps_left", math.inf, above=0.0)),
            ("isolated_s", job.number("isolated_s", 0.0, least=0.0)),
            ("deadline_s", job.number_if_known("deadline_s", math.inf)),
        ):
            self.facts[fact].append(value)
        if "rates" not in job.data and "variants" not in job.data:
            raise fault(path, 'must have "rates" or "variants": how fast the job runs where')
        ways = set()
        for where, type_name, rate in job.entries("rates", {}):
            kind = self._kind(where, type_name)
            ways.add((kind, gpus, ""))
            self.columns.add(where, row, kind, gpus, number(where, rate, least=0.0))
        for i, variant in enumerate(job.items("variants", [])):
            self._add_variant(Fields((*path, "variants", i), variant, VARIANT), row, gpus, ways)

    def _add_variant(self, variant: Fields, row: int, gpus: int, ways: set[tuple[int, int, str]]) -> None:
        kind = self._kind((*variant.path, "worker_type"), variant.text("worker_type"))
        gpus = variant.whole("gpus", gpus, least=1, most=GPUS_MAX)
        label = variant.text("label", "")
        if (kind, gpus, label) in ways:
            raise fault(variant.path, "repeats a way of running the job: same worker type, GPUs and label")
        ways.add((kind, gpus, label))
        rate = variant.number("rate", least=0.0)
        self.columns.add(variant.path, row, kind, gpus, rate, label=label)

    def add_pair(self, path: Path, item: Any) -> None:
        """One entry of `pairs`."""
        pair = Fields(path, item, PAIR)
        names = pair.items("jobs")
        if len(names) != 2:
            raise fault((*path, "jobs"), f"must name two jobs, got {len(names)}")
        a, b = (self._row((*path, "jobs", i), name) for i, name in enumerate(names))
        if a == b:
            raise fault((*path, "jobs"), f"pairs {quoted(names[0])} with itself")
        gpus = self.facts["gpus"]
        if gpus[a] != gpus[b]:
            widths = f"{quoted(names[0])} wants {gpus[a]}, {quoted(names[1])} {gpus[b]}"
            raise fault((*path, "jobs"), f"only jobs of as many GPUs can share them: {widths}")
        for where, type_name, both in pair.entries("rates"):
            kind = self._kind(where, type_name)
            rates = sequence(where, both)
            if len(rates) != 2:
                raise fault(where, f"must be two rates, one for each job, got {len(rates)}")
            known = self.pairs.setdefault((min(a, b), max(a, b), kind), path)
            if known is not path:
                raise fault(where, f"pairs[{known[1]}] gives rates of these two jobs on this type already")
            first, second = (number((*where, i), rate, least=0.0) for i, rate in enumerate(rates))
            self.columns.add(where, a, kind, gpus[a], first, second=b, second_rate=second)

    def _kind(self, path: Path, name: str) -> int:
        if name not in self.kinds:
            raise fault(path, f"unknown worker type {quoted(name)}{nearest(name, self.kinds)}")
        return self.kinds[name]

    def _row(self, path: Path, name: Any) -> int:
        if type(name) is not str:
            raise fault(path, f"must be the id of a job, got {shown(name)}")
        if name not in self.rows:
            raise fault(path, f"no job has the id {quoted(name)}{nearest(name, self.rows)}")
        return self.rows[name]

    def _tenant(self, job: Fields) -> str:
        name = job.text("tenant", "")
        if (name or self.tenants) and name not in self.tenants:
            path = (*job.path, "tenant")
            if "tenant" not in job.data:
                raise fault(
                    job.path, f'"tenant" is missing, and the file lists tenants{nearest("", self.tenants)}'
                )
            raise fault(path, f"{quoted(name)} is not among the tenants{nearest(name, self.tenants)}")
        return name
