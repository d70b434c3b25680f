"""Kinds of jobs: jobs with equal needs, the ways in which they can run, and how fast."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from policies.problem import Floats, Ints
from scheduler.core.planning.round_cache import Frame
from scheduler.core.state import Places, SchedulerState
from scheduler.model import bounds
from scheduler.model.cluster import Node, NodeSpec, gpus_for
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Bundle, GpuId
from scheduler.model.throughput import RateKey
from scheduler.rounds.inputs import NodeView

KindKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways in which jobs of one kind can run, as parallel arrays in order of worker type and width."""

    worker_type: Ints
    gpus: Ints
    rate: Floats
    # Whether neither a table nor a sufficient measurement supports the rate.
    guessed: tuple[bool, ...]
    any_guessed: bool


@dataclass(slots=True)
class Kinds:
    """A cache of everything that all jobs of a kind share. It can be dropped at any time."""

    number: dict[KindKey, int] = field(default_factory=dict)
    specs: list[JobSpec] = field(default_factory=list)
    of_job: dict[str, int] = field(default_factory=dict)
    # By kind, and the stores of the last checkpoint.
    ways: dict[tuple[int, Places], Ways] = field(default_factory=dict)
    # Of a kind, as `rate_of` returns them.
    rates: dict[tuple[int, str, int], float] = field(default_factory=dict)
    paired: dict[tuple[tuple[int, Places], tuple[int, Places]], np.ndarray] = field(default_factory=dict)
    # Usable nodes by the store that they reach.
    seeing: dict[str, list[Node]] = field(default_factory=dict)
    for_versions: tuple[int, int] = (-1, -1)
    worker_types: tuple[str, ...] = ()
    capacity: Floats = field(default_factory=lambda: np.zeros(0))
    widest_node: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    # Usable nodes with their healthy GPUs.
    nodes: tuple[tuple[NodeSpec, tuple[GpuId, ...]], ...] = ()
    # The views of `nodes` for a round, and the order of worker types for which they were made.
    views: tuple[tuple[str, ...], tuple[NodeView, ...]] = (
        (),
        (),
    )
    frame: Frame | None = None  # of the last round

    def refresh(self, state: SchedulerState) -> None:
        """Drop the entries that changes of nodes or rates have made invalid."""
        versions = (state.cluster_version, state.rates.version)
        if versions == self.for_versions:
            return
        same_nodes = versions[0] == self.for_versions[0]
        self.for_versions = versions
        self.ways.clear()
        self.rates.clear()
        self.paired.clear()
        # Rates change with every report.
        if same_nodes:
            return
        self.views = ((), ())
        known = sorted({node.spec.worker_type for node in state.nodes.values()})
        self.worker_types = tuple(known)
        row = {name: i for i, name in enumerate(known)}
        self.capacity = np.zeros(len(known))
        self.widest_node = np.zeros(len(known), np.int64)
        self.nodes = tuple((node.spec, node.gpu_ids) for node in state.usable_nodes())
        self.seeing = {}
        for node in state.usable_nodes():
            self.seeing.setdefault(node.spec.place, []).append(node)
            at, gpus = row[node.spec.worker_type], len(node.gpu_ids)
            self.capacity[at] += gpus
            self.widest_node[at] = max(self.widest_node[at], gpus)

    def of(self, job: Job) -> int:
        """Return the kind of a job."""
        kind = self.of_job.get(job.id)
        if kind is None:
            key = _key(job.spec)
            kind = self.number.setdefault(key, len(self.specs))
            if kind == len(self.specs):
                self.specs.append(job.spec)
            self.of_job[job.id] = kind
        return kind

    def ways_of(self, state: SchedulerState, kind: int, places: Places = ()) -> Ways:
        """Return the ways of a kind with current rates and nodes. `places`: only on nodes that reach one of them."""
        ways = self.ways.get((kind, places))
        if ways is None:
            ways = self.ways[kind, places] = _ways(state, self, self.specs[kind], places)
        return ways

    def rate(self, state: SchedulerState, job: Job, bundle: Bundle) -> float:
        """Return `rate_of` a job in a bundle, from the cache."""
        key = (self.of(job), bundle.worker_type, bundle.gpus)
        rate = self.rates.get(key)
        if rate is None:
            rate = self.rates[key] = rate_of(state, job.spec, bundle.worker_type, bundle.gpus)[0]
        return rate

    def at(self, places: Places) -> list[Node]:
        """Return the usable nodes that reach one of these stores."""
        return [node for place in places for node in self.seeing.get(place, ())]

    def ways_for(self, state: SchedulerState, job: Job) -> Ways:
        """Return the ways of a job: those of its kind, on nodes that reach its last checkpoint."""
        return self.ways_of(state, self.of(job), state.confined_to(job))


def _key(spec: JobSpec) -> KindKey:
    return (
        *(
            spec.job_type,
            spec.gpus,
            spec.narrowest,
            spec.widest,
            spec.worker_types,
            spec.excluded_worker_types,
        ),
        *(spec.nodes, tuple(sorted(spec.labels.items())), spec.cpus, spec.memory_gb, spec.gpu_memory_gb),
        *(tuple(sorted(spec.rates.items())), spec.reports_steps, spec.packable, spec.max_cost),
    )


def _ways(state: SchedulerState, kinds: Kinds, spec: JobSpec, places: Places) -> Ways:
    rows: list[tuple[int, int, float, bool]] = []
    anywhere = not (places or spec.nodes or spec.labels or spec.cpus or spec.memory_gb or spec.gpu_memory_gb)
    nodes = [] if anywhere else kinds.at(places) if places else state.usable_nodes()
    for at, worker_type in enumerate(kinds.worker_types):
        if not spec.may_use(worker_type):
            continue
        available = int(kinds.capacity[at])
        if not anywhere:
            available = sum(gpus_for(node, spec) for node in nodes if node.spec.worker_type == worker_type)
        for gpus in range(spec.narrowest, min(spec.widest, available) + 1):
            spread = not state.settings.consolidated_rates and gpus > kinds.widest_node[at]
            rate, guessed = rate_of(state, spec, worker_type, gpus, spread)
            if rate > 0:
                rows.append((at, gpus, rate, guessed))
    types, widths, rates, guesses = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Ways(
        np.array(types, np.int64),
        np.array(widths, np.int64),
        np.array(rates, float),
        tuple(guesses),
        any(guesses),
    )


def rate_of(
    state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, spread: bool = False
) -> tuple[float, bool]:
    """Return the steps per second of a job run in this way, and whether they are a guess rather than a known rate.

    `spread`: no node is as wide, so the table's rate for a spread gang applies. A rate beyond its limits, as a product
    of several rates or an old journal may have, becomes the nearest allowed one.
    """
    rate, guessed = _rate_of(state, spec, worker_type, gpus, spread)
    return bounds.TABLE_RATE.nearest(rate), guessed


def _rate_of(
    state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, spread: bool
) -> tuple[float, bool]:
    if gpus == spec.gpus and worker_type in spec.rates:
        return spec.rates[worker_type], False
    book, settings = state.rates, state.settings
    table_rate = book.from_table(spec.job_type, gpus, worker_type, spread)
    if table_rate is not None and not (settings.learn_rates and spec.reports_steps):
        return table_rate, False
    # No gang is on more nodes here than it needs.
    key = RateKey(spec.job_type, gpus, worker_type)
    if table_rate is None and not spec.rates and _is_new(state, spec):
        prior = settings.prior_rate * settings.speed.get(worker_type, 1.0) * gpus
        measured = book.measured.get(key) if spec.reports_steps else None
        if measured is None:
            return _scaled(state, spec, worker_type, gpus, prior), spec.reports_steps
        # A short measurement, with its slow first steps, must not rule a worker type out.
        return book.rate(key, None, settings.trust_after_s), measured.observed_s < settings.trust_after_s
    if not settings.learn_rates or not spec.reports_steps:
        return table_rate or 0.0, False
    return book.rate(key, table_rate, settings.trust_after_s), False


def _is_new(state: SchedulerState, spec: JobSpec) -> bool:
    """Whether the table has no rate of the job's type for any way in which this job may run."""
    book = state.rates
    if spec.job_type not in book.known:
        return True
    return not any(
        (book.solo.get((spec.job_type, gpus, worker_type)) or 0.0) > 0.0
        for worker_type, size in state.size_of_type.items()
        if spec.may_use(worker_type)
        for gpus in range(spec.narrowest, min(spec.widest, size) + 1)
    )


def _scaled(state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, prior: float) -> float:
    """Scale a rate measured elsewhere to this way of running, in the same proportion as the prior."""
    speed = state.settings.speed
    known = [key for key in state.rates.measured if key.job_type == spec.job_type and not key.partner]
    if not known or not spec.reports_steps:
        return prior
    # Any of them, but the same one after a restart.
    key = min(known)
    ratio = speed.get(worker_type, 1.0) / speed.get(key.worker_type, 1.0)
    return state.rates.measured[key].believed * ratio * gpus / key.gpus
