"""Kinds of jobs (jobs with equal needs are one kind), the ways in which each kind can run, and their rates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from policies.problem import Floats, Ints
from scheduler.core.planning.planned_rates import planned_rates
from scheduler.core.planning.round_cache import Frame
from scheduler.core.state import SchedulerState, Stores
from scheduler.model import bounds
from scheduler.model.cluster import Node, NodeSpec, gpus_for, in_groups
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
    # The labels of plans; empty texts if the jobs have none.
    label: tuple[str, ...]


@dataclass(slots=True)
class Kinds:
    """A cache of everything that all jobs of a kind share. It can be dropped at any time."""

    # The number of each kind.
    number: dict[KindKey, int] = field(default_factory=dict)
    # By kind: the spec of its first job.
    specs: list[JobSpec] = field(default_factory=list)
    # By job: its kind.
    of_job: dict[str, int] = field(default_factory=dict)
    # The results of `ways_of`, by kind and stores of the last checkpoint.
    ways: dict[tuple[int, Stores], Ways] = field(default_factory=dict)
    # The results of `rate_of`, by kind, worker type and GPUs.
    rates: dict[tuple[int, str, int], float] = field(default_factory=dict)
    # The rows of pair rates, by two kinds with their stores.
    paired: dict[tuple[tuple[int, Stores], tuple[int, Stores]], np.ndarray] = field(default_factory=dict)
    # Usable nodes by the store of checkpoints that they reach.
    by_store: dict[str, list[Node]] = field(default_factory=dict)
    # The versions of the nodes and of the rates from which the entries were computed.
    for_versions: tuple[int, int] = (-1, -1)
    worker_types: tuple[str, ...] = ()
    # By row of worker type: the usable GPUs, and the most of them on one node.
    capacity: Floats = field(default_factory=lambda: np.zeros(0))
    widest_node: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    # Usable nodes with their healthy GPUs, and whether agents of some of them ignore plans.
    nodes: tuple[tuple[NodeSpec, tuple[GpuId, ...]], ...] = ()
    any_ignores_plans: bool = False
    # The worker types in the order in which a round numbers them, and the views of `nodes` with these numbers.
    views: tuple[tuple[str, ...], tuple[NodeView, ...]] = ((), ())
    # The frame of the last round.
    frame: Frame | None = None

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
        # Usually only rates have changed, which happens with every report.
        if same_nodes:
            return
        self.views = ((), ())
        known = sorted({node.spec.worker_type for node in state.nodes.values()})
        self.worker_types = tuple(known)
        row_of = {name: i for i, name in enumerate(known)}
        self.capacity = np.zeros(len(known))
        self.widest_node = np.zeros(len(known), np.int64)
        self.nodes = tuple((node.spec, node.gpu_ids) for node in state.usable_nodes())
        self.any_ignores_plans = any(spec.ignores_plans for spec, _ in self.nodes)
        self.by_store = {}
        for node in state.usable_nodes():
            self.by_store.setdefault(node.spec.store, []).append(node)
            row, gpus = row_of[node.spec.worker_type], len(node.gpu_ids)
            self.capacity[row] += gpus
            self.widest_node[row] = max(self.widest_node[row], gpus)

    def of(self, job: Job) -> int:
        """Return the number of a job's kind."""
        kind = self.of_job.get(job.id)
        if kind is None:
            key = _key(job.spec)
            kind = self.number.setdefault(key, len(self.specs))
            if kind == len(self.specs):
                self.specs.append(job.spec)
            self.of_job[job.id] = kind
        return kind

    def ways_of(self, state: SchedulerState, kind: int, stores: Stores = ()) -> Ways:
        """Return the current ways of a kind. With `stores`, count only nodes that reach one of these stores."""
        ways = self.ways.get((kind, stores))
        if ways is None:
            ways = self.ways[kind, stores] = _ways(state, self, self.specs[kind], stores)
        return ways

    def rate(self, state: SchedulerState, job: Job, bundle: Bundle) -> float:
        """Return the rate of a job in a bundle, as `rate_of` does, but from the cache."""
        key = (self.of(job), bundle.worker_type, bundle.gpus)
        rate = self.rates.get(key)
        if rate is None:
            rate = self.rates[key] = rate_of(state, job.spec, bundle.worker_type, bundle.gpus)[0]
        return rate

    def in_groups(self, worker_type: str, granule: int) -> int:
        """Return how many usable GPUs of a worker type are in groups of `granule` on single nodes."""
        return in_groups([len(gpus) for node, gpus in self.nodes if node.worker_type == worker_type], granule)

    def reaching(self, stores: Stores) -> list[Node]:
        """Return the usable nodes that reach one of these stores."""
        return [node for store in stores for node in self.by_store.get(store, ())]

    def ways_for(self, state: SchedulerState, job: Job) -> Ways:
        """Return the ways of a job's kind, on nodes that reach the job's last checkpoint."""
        return self.ways_of(state, self.of(job), state.confined_to(job))


def _key(spec: JobSpec) -> KindKey:
    return (
        *(
            spec.job_type,
            spec.gpus,
            spec.narrowest,
            spec.widest,
            spec.gpus_together,
            spec.is_interactive,
            spec.worker_types,
            spec.excluded_worker_types,
        ),
        *(spec.nodes, tuple(sorted(spec.labels.items())), spec.cpus, spec.memory_gb, spec.gpu_memory_gb),
        *(tuple(sorted(spec.rates.items())), spec.reports_steps, spec.packable, spec.max_cost),
        # Plans are struck out for all jobs of a user.
        spec.plans
        and (
            spec.user,
            tuple([(p.worker_type, p.gpus, p.label, p.rate, p.gpus_together) for p in spec.plans]),
        ),
    )


def _ways(state: SchedulerState, kinds: Kinds, spec: JobSpec, stores: Stores) -> Ways:
    rows: list[tuple[int, int, float, bool, str]] = []
    picky = spec.nodes or spec.labels or spec.cpus or spec.memory_gb or spec.gpu_memory_gb
    anywhere = not (stores or picky or spec.is_grouped or (spec.plans and kinds.any_ignores_plans))
    nodes = [] if anywhere else kinds.reaching(stores) if stores else state.usable_nodes()
    for row, worker_type in enumerate(kinds.worker_types):
        if not spec.may_use(worker_type):
            continue
        on_nodes = [gpus_for(node, spec) for node in nodes if node.spec.worker_type == worker_type]
        available = int(kinds.capacity[row]) if anywhere else sum(on_nodes)
        planned = planned_rates(state, spec, worker_type) if spec.plans else {}
        for gpus in spec.widths_on(worker_type, available):
            granule = spec.granule(gpus, worker_type)
            if granule > 1 and in_groups(on_nodes, granule) < gpus:
                continue
            spread = not state.settings.consolidated_rates and gpus > kinds.widest_node[row]
            if spec.plans:
                rate, guessed = planned.get(gpus, 0.0), False
            else:
                rate, guessed = rate_of(state, spec, worker_type, gpus, spread)
            if rate > 0:
                plan = spec.plan_for(worker_type, gpus)
                rows.append((row, gpus, rate, guessed, plan.label if plan else ""))
    types, widths, rates, guesses, labels = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Ways(
        np.array(types, np.int64),
        np.array(widths, np.int64),
        np.array(rates, float),
        tuple(guesses),
        any(guesses),
        tuple(labels),
    )


def rate_of(
    state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, spread: bool = False
) -> tuple[float, bool]:
    """Return the rate of a job that runs in this way, in steps per second, and whether the rate is a guess.

    `spread`: no node has this many GPUs, so the table's rate for a spread gang applies.
    """
    rate, guessed = _rate_of(state, spec, worker_type, gpus, spread)
    # A product of rates, or a rate from an old journal, may be beyond the limits.
    return bounds.TABLE_RATE.nearest(rate), guessed


def _rate_of(
    state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, spread: bool
) -> tuple[float, bool]:
    if spec.plans:
        return planned_rates(state, spec, worker_type).get(gpus, 0.0), False
    if gpus == spec.gpus and worker_type in spec.rates:
        return spec.rates[worker_type], False
    book, settings = state.rates, state.settings
    table_rate = book.from_table(spec.job_type, gpus, worker_type, spread)
    if table_rate is not None and not (settings.learn_rates and spec.reports_steps):
        return table_rate, False
    # The measured rate of a gang on no more nodes than it needs.
    key = RateKey(spec.job_type, gpus, worker_type)
    if table_rate is None and not spec.rates and _is_new(state, spec):
        prior = settings.prior_rate * settings.speed.get(worker_type, 1.0) * gpus
        measured = book.measured.get(key) if spec.reports_steps else None
        if measured is None:
            return _scaled(state, spec, worker_type, gpus, prior), spec.reports_steps
        # First steps are slow. So that a short measurement does not rule out a worker type, it counts as a guess.
        return book.rate(key, None, settings.trust_after_s), measured.observed_s < settings.trust_after_s
    if not settings.learn_rates or not spec.reports_steps:
        return table_rate or 0.0, False
    return book.rate(key, table_rate, settings.trust_after_s), False


def _is_new(state: SchedulerState, spec: JobSpec) -> bool:
    """Whether the table has no rate above 0 of the job's type for any way in which this job may run."""
    book = state.rates
    if spec.job_type not in book.known:
        return True
    return not any(
        (book.solo.get((spec.job_type, gpus, worker_type)) or 0.0) > 0.0
        for worker_type, size in state.size_of_type.items()
        if spec.may_use(worker_type)
        for gpus in spec.widths(size)
    )


def _scaled(state: SchedulerState, spec: JobSpec, worker_type: str, gpus: int, prior: float) -> float:
    """Return a rate measured in another way of running, scaled to this one; the prior if nothing was measured."""
    key = state.rates.first_measured(spec.job_type)
    if key is None or not spec.reports_steps:
        return prior
    ratio = _speed_ratio(state, worker_type, key.worker_type)
    return state.rates.measured[key].believed * ratio * gpus / key.gpus


def _speed_ratio(state: SchedulerState, worker_type: str, other: str) -> float:
    """Return how many times as fast a worker type is as another one: by the settings, else as the table's jobs are."""
    speed = state.settings.speed
    ratio = None if speed else state.rates.speed_ratio(worker_type, other)
    return speed.get(worker_type, 1.0) / speed.get(other, 1.0) if ratio is None else ratio
