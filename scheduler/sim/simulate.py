"""One simulated run: in virtual time, but with the live service's core, its loop and its agents' decisions."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from policies.registry import resolve
from scheduler.core.core import Core
from scheduler.core.facts import Fact, RatesGiven
from scheduler.core.messages import Configure, GiveRates, JobCommand, Message, SetPrices, UpdateJob
from scheduler.core.state import SchedulerState
from scheduler.drive import Journal, drive
from scheduler.model.budgets import period_at
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.settings import Settings
from scheduler.sim.engine.machines import Machines, agent_limits
from scheduler.sim.engine.physics import JobTruth, Physics
from scheduler.sim.engine.renewals import RestartingMachines
from scheduler.sim.engine.world import Arrival, Change, SimWorld
from scheduler.sim.figures.ideal import Fluid
from scheduler.sim.figures.metrics import Metrics
from scheduler.solving import answer
from traces.costs import Cost
from traces.throughputs import Throughputs
from traces.trace import TraceJob
from worker_agent.core.messages import Limits

# All simulated nodes see each other's checkpoints.
STORAGE = "shared"
# The number of new objects after which the garbage collector looks for cycles: a run makes many objects and few cycles.
COLLECT_EVERY = 100_000
# The number of records that are measured in a row, so that this code stays in the processor's caches.
MEASURED_AT_ONCE = 200
# A run ends at this virtual time, about thirty years: it probably waits for an event that cannot happen.
STARVED_S = 1e9
# If no job has had a GPU for this many rounds and no event is left, no job will ever get a GPU.
STILL_ROUNDS = 50


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The truth about jobs, nodes and solver in a simulated world, independent of the workload."""

    seed: int = 0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    # `restart_s` and `checkpoint_s` by job type, for types with times of their own.
    costs: Mapping[str, Cost] = {}
    rate_noise: float = 0.0
    solver_latency_s: float = 0.0
    report_interval_s: float = 3600.0
    save_every_s: float = 3600.0
    # Whether a job whose lease is renewed saves and restarts.
    renewal_restarts: bool = False
    # Whether each job has its fair share of CPUs, and the rest stays idle.
    fixed_cpus: bool = False

    @property
    def checkpoints_s(self) -> tuple[float, ...]:
        """How long jobs take to save: the usual time, then the times of job types that have their own."""
        return self.checkpoint_s, *(cost.checkpoint_s for cost in self.costs.values())

    @property
    def conditions(self) -> dict[str, Any]:
        """The fields of `Conditions` by name, without those of a subclass."""
        return {name: getattr(self, name) for name in Conditions.__struct_fields__}


class SimOptions(Conditions, frozen=True, kw_only=True):
    """A simulation whose files have been read. `scheduler.sim.run` explains the fields that `Run` has as well."""

    cluster: Mapping[str, int]
    gpus_per_node: int = 1
    # None: CPUs play no part.
    cpus_per_node: float | None = None
    # The jobs; endless ones need `measure`.
    jobs: Iterable[TraceJob] = ()
    # For a replay: requests that precede `jobs`, and users' commands.
    arrivals: Sequence[Arrival] = ()
    commands: Sequence[tuple[float, JobCommand | UpdateJob]] = ()
    # The true rates, and the rates given to the scheduler (None: the true rates).
    throughputs: Throughputs
    believed: Throughputs | None = None
    settings: Settings = Settings()
    # None: the prices of the throughput table.
    prices: Mapping[str, float] | None = None
    measure: tuple[int, int] | None = None
    # Faults, reclaimed nodes and prices over time.
    events: Sequence[Change] = ()
    ideal: bool = False
    journal: Journal | None = None


@dataclass(slots=True)
class Progress:
    """The progress of a run: the virtual time, and the jobs submitted and ended."""

    now_s: float = 0.0
    submitted: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class SimResult:
    """The outcome of a run. `refused` has the name of each refused job, and the reason."""

    metrics: Metrics
    wall_s: float
    rounds: int
    events: int
    facts: int
    refused: tuple[tuple[str, str], ...]
    interrupted: bool = False


class _Recorder:
    """Passes facts to the metrics and, if there is one, to the journal.

    The metrics get many records in a row, because that is a third faster.
    """

    def __init__(self, metrics: Metrics, journal: Journal | None) -> None:
        self.journal, self.facts = journal, 0
        self._metrics = metrics
        self._unmeasured: deque[tuple[float, Sequence[Fact]]] = deque()

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Record the facts of one atomic batch."""
        if self.journal is not None:
            self.journal.append(now_s, facts)
        self._unmeasured.append((now_s, facts))
        self.facts += len(facts)
        if len(self._unmeasured) >= MEASURED_AT_ONCE:
            self.metrics()

    def metrics(self) -> Metrics:
        """Return the metrics of all facts so far."""
        try:
            while self._unmeasured:
                self._metrics.observe_all(*self._unmeasured.popleft())
        except BaseException:
            # The metrics have only half of this record, so later records would not fit.
            self._unmeasured.clear()
            raise
        return self._metrics


def simulate(options: SimOptions, *, progress: Callable[[Progress], bool | None] | None = None) -> SimResult:
    """Run a simulation to its end.

    Ctrl-C, or a `progress` that returns False, stops the run early; the result then has the figures so far.
    """
    began_s = time.perf_counter()
    # The name of an unknown policy must be an error before the run, not in the middle of it.
    resolve(options.settings.policy)
    recorder = _Recorder(Metrics(options.measure), options.journal)
    watch = _Watch(options, recorder, progress)
    run = _run_ideal if options.ideal else _run_rounds
    with _fewer_collections():
        rounds, events, refused = run(options, recorder, watch)
    metrics = recorder.metrics()
    metrics.settle()
    return SimResult(
        metrics=metrics,
        wall_s=time.perf_counter() - began_s,
        rounds=rounds,
        events=events,
        facts=recorder.facts,
        refused=refused,
        interrupted=watch.stopped,
    )


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Make the garbage collector look for cycles less often within this block."""
    usual = gc.get_threshold()
    gc.set_threshold(max(COLLECT_EVERY, usual[0]), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Watch:
    """Reports the progress of a run, and decides when it is over."""

    def __init__(
        self, options: SimOptions, recorder: _Recorder, progress: Callable[[Progress], bool | None] | None
    ) -> None:
        self.stopped = False
        self.state: SchedulerState | None = None
        self._recorder, self._progress, self._reported = recorder, progress, Progress()
        # The number of submitted jobs at the arrival of the last measured one.
        self._least_jobs = options.measure[1] if options.measure else math.inf
        self._every_s = 20 * options.settings.round_s

    def over(self, now_s: float) -> bool:
        """Return whether every measured job has ended, or the run has to stop. Report progress from time to time."""
        progress, state = self._reported, self.state
        if self._progress is not None and state is not None and now_s - progress.now_s >= self._every_s:
            progress.now_s, progress.submitted = now_s, len(state.jobs)
            progress.ended = progress.submitted - len(state.active)
            self.stopped = self._progress(progress) is False
        return self.stopped or now_s > STARVED_S or self._all_measured()

    def _all_measured(self) -> bool:
        """Return whether every measured job has ended. While some have not arrived, the metrics are not updated."""
        if self.state is None or len(self.state.jobs) < self._least_jobs:
            return False
        return self._recorder.metrics().all_ended


class _Stillness:
    """Detects that only empty rounds can follow, so that a waiting job would never run."""

    def __init__(self, settings: Settings) -> None:
        self._patience_s = settings.min_reallocation_s + STILL_ROUNDS * settings.round_s
        self._since_s = 0.0

    def is_final(self, now_s: float, state: SchedulerState, world: SimWorld) -> bool:
        """Return whether no job has had a GPU for many rounds, and no event is left that could change that."""
        if state.leases or world.has_events_left:
            self._since_s = now_s
        # Jobs may wait until a budget of which they have spent something is renewed.
        for account in state.spent.values():
            if account.spent > 0:
                self._since_s = max(self._since_s, period_at(account.period, account.starts_s).ends_s)
        return now_s - self._since_s > self._patience_s


# The number of rounds, the number of events, and each refused job with the reason.
Counts = tuple[int, int, tuple[tuple[str, str], ...]]


def _run_rounds(options: SimOptions, recorder: _Recorder, watch: _Watch) -> Counts:
    """Run the real scheduler on simulated machines."""
    physics = Physics(
        options.throughputs,
        seed=options.seed,
        noise_sigma=options.rate_noise,
        always_consolidated=options.settings.consolidated_rates,
        fixed_cpus=options.fixed_cpus,
    )
    machines_class = RestartingMachines if options.renewal_restarts else Machines
    machines = machines_class(physics, limits=agent_limits(options.report_interval_s, patience_s(options)))
    core = Core()
    watch.state = core.state

    stillness = _Stillness(options.settings)

    def over(now_s: float) -> bool:
        state = core.state
        nothing_left = world.all_arrived and bool(state.nodes) and not state.active and not state.leases
        return nothing_left or watch.over(now_s) or stillness.is_final(now_s, state, world)

    world = SimWorld(
        machines, _arrivals(options), answer, solver_latency_s=options.solver_latency_s, over=over
    )
    _open(options, world, machines)
    try:
        asyncio.run(drive(core, world, recorder))
    except KeyboardInterrupt:
        watch.stopped = True
    return core.state.round.number, world.events, tuple(world.refused)


def _run_ideal(options: SimOptions, recorder: _Recorder, watch: _Watch) -> Counts:
    """Give every job exactly its shares, without rounds."""
    fluid = Fluid(options.settings, lambda now_s, fact: recorder.append(now_s, (fact,)))
    watch.state = fluid.state
    table = (options.believed or options.throughputs).restrict(options.cluster)
    fluid.open(nodes(options.cluster, options.gpus_per_node), RatesGiven(**table.rows()), _prices(options))
    try:
        fluid.run(_arrivals(options), watch.over)
    except KeyboardInterrupt:
        watch.stopped = True
    return fluid.allocations, recorder.facts, ()


def patience_s(options: SimOptions) -> float:
    """Return how long agents wait for a checkpoint before they send SIGTERM: longer than any checkpoint takes."""
    return max(Limits().ask_s, 1.5 * max(options.checkpoints_s))


def with_lease_margin(settings: Settings, options: SimOptions) -> Settings:
    """Return the settings with a lease margin longer than agents take to stop a job."""
    wait_s = patience_s(options) + 2.0 * Limits().grace_s
    return msgspec.structs.replace(settings, lease_margin_s=max(settings.lease_margin_s, wait_s))


def _prices(options: SimOptions) -> Mapping[str, float]:
    return options.throughputs.prices_per_gpu_hour if options.prices is None else options.prices


def _open(options: SimOptions, world: SimWorld, machines: Machines) -> None:
    """Schedule the first messages (settings, rates, prices, nodes), the events and the users' commands."""
    table = (options.believed or options.throughputs).restrict(options.cluster)
    world.at(0.0, Configure(settings=with_lease_margin(options.settings, options)))
    world.at(0.0, GiveRates(**table.rows()))
    prices = _prices(options)
    if prices:
        world.at(0.0, SetPrices(price_per_gpu_hour=dict(prices)))
    for spec in nodes(options.cluster, options.gpus_per_node, options.cpus_per_node):
        world.at(0.0, partial(machines.join, spec=spec))
    for at_s, event in options.events:
        if isinstance(event, Configure):
            event = msgspec.structs.replace(event, settings=with_lease_margin(event.settings, options))
        world.at(at_s, event if isinstance(event, Message) else partial(event, machines))
    for at_s, command in options.commands:
        world.command(at_s, command)


def nodes(
    cluster: Mapping[str, int], gpus_per_node: int, cpus_per_node: float | None = None
) -> Iterator[NodeSpec]:
    """Yield the nodes of each type, with these GPUs and CPUs each. The last node of a type may have fewer of both."""
    for worker_type, gpus in cluster.items():
        count = -(-gpus // gpus_per_node)
        digits = len(str(count - 1))
        for i in range(count):
            size = min(gpus_per_node, gpus - i * gpus_per_node)
            name = f"{worker_type}-{i:0{digits}d}"
            cpus = None if cpus_per_node is None else cpus_per_node * size / gpus_per_node
            yield NodeSpec(name=name, worker_type=worker_type, gpus=size, cpus=cpus, storage=STORAGE)


def _arrivals(options: SimOptions) -> Iterator[Arrival]:
    yield from options.arrivals
    usual = Cost(float(options.restart_s), float(options.checkpoint_s))
    believed = (options.believed or options.throughputs).restrict(options.cluster)
    planned = planned_types(options.throughputs, believed)
    for job in options.jobs:
        plans, rates_of_plans = planned.get(job.job_type, ((), {}))
        cost = options.costs.get(job.job_type, usual)
        spec = JobSpec(
            name=job.name or job.id,
            job_type=job.job_type,
            gpus=job.gpus,
            gpus_min=job.gpus_min,
            gpus_max=job.gpus_max,
            gpus_together=job.gpus_together,
            steps=None if job.steps is None else float(job.steps),
            weight=float(job.weight),
            tenant=job.tenant,
            user=job.user,
            deadline_s=None if job.deadline_s is None else float(job.deadline_s),
            worker_types=job.worker_types,
            restart_cost_s=cost.restart_s + cost.checkpoint_s,
            plans=plans,
        )
        truth = JobTruth(
            job_type=job.job_type,
            gpus=job.gpus,
            steps_total=float("inf") if job.steps is None else float(job.steps),
            restart_s=cost.restart_s,
            checkpoint_s=cost.checkpoint_s,
            save_every_s=options.save_every_s,
            planned=rates_of_plans,
        )
        yield Arrival(float(job.arrival_s), spec, (truth,))


def planned_types(
    table: Throughputs, believed: Throughputs
) -> dict[str, tuple[tuple[Plan, ...], dict[tuple[str, int], float]]]:
    """Return, by job type with plans: the plans as its jobs submit them, and the true rates by worker type and GPUs."""
    plans: dict[str, list[Plan]] = {}
    for plan in believed.plans.values():
        submitted = Plan(
            worker_type=plan.worker_type,
            gpus=plan.gpus,
            label=plan.label,
            rate=plan.predicted_rate,
            gpus_together=plan.gpus_together,
        )
        plans.setdefault(plan.job_type, []).append(submitted)
    return {
        job_type: (
            tuple(own),
            {
                (plan.worker_type, plan.gpus): table.rate(job_type, plan.gpus, plan.worker_type)
                for plan in own
            },
        )
        for job_type, own in plans.items()
    }
