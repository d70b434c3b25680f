"""A problem file: a cluster, its jobs and their rates, as users write them. docs/problem-format.md describes it.

The types below define the valid values of each field. Every requirement of `Problem` is checked here first, so that an
error names its place in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from gavel.cli.io.document import read_document
from gavel.cli.io.wording import count_of
from policies.errors import ProblemError
from policies.problem import ALONE, Columns, Jobs, Problem, Tenant
from protos.files.convert import convert
from protos.files.errors import BadInput, Place, literal, suggest
from protos.gavel.v1.limits import GPUS_MAX

NUMBER_MAX = 1e15
Name = Annotated[str, Meta(min_length=1)]
Width = Annotated[int, Meta(ge=1, le=GPUS_MAX)]
Amount = Annotated[float, Meta(ge=0, le=NUMBER_MAX)]
Factor = Annotated[float, Meta(gt=0, le=NUMBER_MAX)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A mapping in the file. Unknown fields are refused."""


class WorkerType(_Entry):
    """An entry of `worker_types`."""

    gpus: Annotated[int, Meta(ge=0, le=GPUS_MAX)]
    price_per_gpu_hour: Amount | None = None
    cpus: Factor | None = None

    def fair_cpus(self, gpus: int) -> float:
        """Return the CPUs that belong to so many GPUs; 0 if the CPUs of this type are not limited."""
        return gpus * self.cpus / self.gpus if self.cpus and self.gpus else 0.0


class Variant(_Entry):
    """A further way to run a job."""

    worker_type: str
    rate: Amount
    gpus: Width | None = None
    label: str = ""
    cpus: Amount | None = None


class Job(_Entry):
    """An entry of `jobs`."""

    id: Name
    gpus: Width = 1
    weight: Factor = 1.0
    tenant: str | None = None
    rates: dict[str, Amount] | None = None
    variants: list[Variant] | None = None
    steps_left: Annotated[float, Meta(gt=0)] | Literal["inf"] | None = None
    waited_s: Amount = 0.0
    isolated_s: Amount = 0.0
    deadline_s: float | Literal["inf"] | None = None


class Pair(_Entry):
    """An entry of `pairs`: the rates of two jobs on the same GPUs."""

    jobs: tuple[str, str]
    rates: dict[str, tuple[Amount, Amount]]


class TenantEntry(_Entry):
    """An entry of `tenants`."""

    name: Name
    weight: Factor = 1.0
    policy: Literal["fairness", "fifo"] = "fairness"


class ProblemFile(_Entry):
    """The whole file."""

    worker_types: Annotated[dict[str, WorkerType], Meta(min_length=1)]
    jobs: list[Job]
    pairs: list[Pair] = []
    tenants: list[TenantEntry] = []
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    now_s: Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)] = 0.0


def read_problem(name: str, seed: int | None = None) -> Problem:
    """Return the problem in a JSON or YAML file (`-`: standard input), or raise BadInput."""
    document = read_document(name)
    try:
        return to_problem(document.data, seed)
    except BadInput as error:
        error.line = error.line or document.line_of(error.place)
        raise


def to_problem(data: Any, seed: int | None = None) -> Problem:
    """Return the problem that plain data describes, or raise BadInput."""
    file = convert(data, ProblemFile)
    tenants = _tenants(file)
    jobs = _Jobs(file, {tenant.name: tenant for tenant in tenants})
    types = file.worker_types.values()
    cpus = [math.inf if kind.cpus is None else kind.cpus for kind in types]
    prices = [math.nan if kind.price_per_gpu_hour is None else kind.price_per_gpu_hour for kind in types]
    try:
        return Problem(
            jobs=jobs.rows(),
            columns=jobs.columns(),
            worker_types=tuple(file.worker_types),
            capacity=np.array([kind.gpus for kind in types], dtype=float),
            cpus=np.array(cpus, dtype=float),
            price_per_gpu_hour=np.array(prices, dtype=float),
            tenants=tenants,
            seed=file.seed if seed is None else seed,
            now_s=file.now_s,
        )
    except ProblemError as error:
        raise BadInput(str(error)) from None


def _tenants(file: ProblemFile) -> tuple[Tenant, ...]:
    tenants: dict[str, Tenant] = {}
    for index, tenant in enumerate(file.tenants):
        if tenant.name in tenants:
            raise BadInput(f"is {literal(tenant.name)} again", place=("tenants", index, "name"))
        tenants[tenant.name] = Tenant(tenant.name, tenant.weight, tenant.policy)
    return tuple(tenants.values())


class _Jobs:
    """The jobs and pairs of a file, checked against each other, as rows and columns of a problem."""

    def __init__(self, file: ProblemFile, tenants: Mapping[str, Tenant]) -> None:
        self._jobs = file.jobs
        self._tenants = tenants
        self._kinds = {name: index for index, name in enumerate(file.worker_types)}
        self._types = tuple(file.worker_types.values())
        self._rows: dict[str, int] = {}
        # Of each column: first job, second job, worker type, GPUs, the rates of both jobs, label, CPUs.
        self._columns: list[tuple[int, int, int, int, float, float, str, float]] = []
        for index, job in enumerate(file.jobs):
            self._add(("jobs", index), index, job)
        # The entry of `pairs` that gives the rates of two jobs on a type.
        entries: dict[tuple[int, int, int], int] = {}
        for index, pair in enumerate(file.pairs):
            self._add_pair(("pairs", index), index, pair, entries)

    def rows(self) -> Jobs:
        """Return the table of jobs."""
        jobs = self._jobs
        steps = [_or_inf(job.steps_left, ("jobs", index, "steps_left")) for index, job in enumerate(jobs)]
        deadlines = [_or_inf(job.deadline_s, ("jobs", index, "deadline_s")) for index, job in enumerate(jobs)]
        return Jobs(
            tuple(self._rows),
            gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
            weight=np.array([job.weight for job in jobs], dtype=float),
            tenant=tuple(job.tenant or "" for job in jobs),
            waited_s=np.array([job.waited_s for job in jobs], dtype=float),
            steps_left=np.array(steps, dtype=float),
            isolated_s=np.array([job.isolated_s for job in jobs], dtype=float),
            deadline_s=np.array(deadlines, dtype=float),
        )

    def columns(self) -> Columns:
        """Return the ways to run the jobs."""
        parts = zip(*self._columns, strict=True) if self._columns else [()] * 8
        first, second, worker_type, gpus, first_rate, second_rate, label, cpus = parts
        return Columns(
            first=np.array(first, dtype=np.int64),
            second=np.array(second, dtype=np.int64),
            worker_type=np.array(worker_type, dtype=np.int64),
            gpus=np.array(gpus, dtype=np.int64),
            first_rate=np.array(first_rate, dtype=float),
            second_rate=np.array(second_rate, dtype=float),
            label=tuple(label),
            cpus=np.array(cpus, dtype=float),
        )

    def _add(self, place: Place, row: int, job: Job) -> None:
        if job.id in self._rows:
            problem = f"is {literal(job.id)}, the id of jobs[{self._rows[job.id]}]"
            raise BadInput(problem, "each job needs its own id", place=(*place, "id"))
        self._rows[job.id] = row
        if (job.tenant or self._tenants) and (job.tenant or "") not in self._tenants:
            problem = (
                "is missing" if job.tenant is None else f"is {literal(job.tenant)}, not among the tenants"
            )
            raise BadInput(problem, suggest(job.tenant or "", self._tenants), place=(*place, "tenant"))
        if job.rates is None and job.variants is None:
            raise BadInput(
                "has neither rates nor variants", "give the rates at which the job runs", place=place
            )
        ways = set()
        for name, rate in (job.rates or {}).items():
            kind = self._kind(name, (*place, "rates", name))
            cpus = self._types[kind].fair_cpus(job.gpus)
            ways.add((kind, job.gpus, "", cpus))
            self._columns.append((row, ALONE, kind, job.gpus, rate, 0.0, "", cpus))
        for index, variant in enumerate(job.variants or ()):
            kind = self._kind(variant.worker_type, (*place, "variants", index, "worker_type"))
            gpus = job.gpus if variant.gpus is None else variant.gpus
            cpus = self._cpus(variant, kind, gpus, (*place, "variants", index, "cpus"))
            way = (kind, gpus, variant.label, cpus)
            if way in ways:
                problem = "repeats a way to run the job"
                advice = "it has the same worker type, GPUs, label and CPUs"
                raise BadInput(problem, advice, place=(*place, "variants", index))
            ways.add(way)
            self._columns.append((row, ALONE, kind, gpus, variant.rate, 0.0, variant.label, cpus))

    def _cpus(self, variant: Variant, kind: int, gpus: int, place: Place) -> float:
        """Return the CPUs of a variant, by default the fair share; raise BadInput if its type has too few."""
        worker_type = self._types[kind]
        if variant.cpus is None:
            return worker_type.fair_cpus(gpus)
        most = worker_type.cpus
        if most is None:
            problem = f"is {variant.cpus:g}, but worker type {literal(variant.worker_type)} states no CPUs"
            raise BadInput(problem, f"add `cpus` to worker_types.{variant.worker_type}", place=place)
        # A job that is wider than the type gets part of the time, and its fair share of CPUs then.
        if variant.cpus > max(most, worker_type.fair_cpus(gpus)):
            problem = f"is {variant.cpus:g}, more than all of worker type {literal(variant.worker_type)}"
            raise BadInput(problem, f"it has {most:g} CPUs", place=place)
        return variant.cpus

    def _add_pair(
        self, place: Place, number: int, pair: Pair, entries: dict[tuple[int, int, int], int]
    ) -> None:
        jobs_place = (*place, "jobs")
        for index, name in enumerate(pair.jobs):
            if name not in self._rows:
                problem = f"is {literal(name)}, which is not the id of a job"
                raise BadInput(problem, suggest(name, self._rows), place=(*jobs_place, index))
        a, b = (self._rows[name] for name in pair.jobs)
        gpus, other_gpus = self._jobs[a].gpus, self._jobs[b].gpus
        if a == b:
            raise BadInput(f"pairs {literal(pair.jobs[0])} with itself", place=jobs_place)
        if gpus != other_gpus:
            problem = f"pairs a job of {count_of(gpus, 'GPU')} with a job of {count_of(other_gpus, 'GPU')}"
            raise BadInput(problem, "only jobs with the same number of GPUs can share them", place=jobs_place)
        for name, (rate, other_rate) in pair.rates.items():
            kind = self._kind(name, (*place, "rates", name))
            earlier = entries.setdefault((min(a, b), max(a, b), kind), number)
            if earlier != number:
                problem = f"repeats pairs[{earlier}]: the same jobs on the same type"
                raise BadInput(problem, place=(*place, "rates", name))
            cpus = self._types[kind].fair_cpus(gpus)
            self._columns.append((a, b, kind, gpus, rate, other_rate, "", cpus))

    def _kind(self, name: str, place: Place) -> int:
        """Return the index of a worker type; raise BadInput with this place if there is no such type."""
        if name not in self._kinds:
            problem = f"is {literal(name)}, an unknown worker type"
            raise BadInput(problem, suggest(name, self._kinds), place=place)
        return self._kinds[name]


def _or_inf(value: float | str | None, place: Place) -> float:
    """Return a number; infinity for "inf" and for a missing value."""
    if value is None or value == "inf":
        return math.inf
    number = float(value)
    if math.isnan(number) or NUMBER_MAX < abs(number) < math.inf or number == -math.inf:
        raise BadInput(
            f"is {literal(number)}", f'must be a number of at most {NUMBER_MAX:g}, or "inf"', place=place
        )
    return number
