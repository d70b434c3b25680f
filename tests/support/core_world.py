"""The whole scheduler in a simulated world that is checked at every step.

After every message the invariants hold and no terminal job has changed; after every instant the processes that
really run are those that the scheduler counts on. A scheduler can be killed and started again from its records
while the machines keep running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.effects import Effect, Reply, Solve
from scheduler.core.facts import Fact, JobMoved, LeaseClosed
from scheduler.core.invariants import check
from scheduler.core.messages import Configure, GiveRates, Message, NodeSilent, Solved, SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.drive import drive
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import HOLDING, Lease
from scheduler.model.settings import Settings
from scheduler.sim.engine.machines import NEVER, Machines
from scheduler.sim.engine.node import Node
from scheduler.sim.engine.physics import JobTruth, Physics
from scheduler.sim.engine.world import Arrival, SimWorld
from scheduler.solving import answer
from tests.support.faulty_link import FaultyLink
from traces.throughputs import Throughputs
from worker_agent.core.messages import Limits, ProcessExited

LIMITS = Limits(report_interval_s=200.0, late_s=1e-3, ask_s=10.0, grace_s=5.0)
WIDTHS = (1, 2, 3, 4)
SPEED = {("cnn", "v100"): 10.0, ("cnn", "k80"): 2.0, ("lm", "v100"): 4.0, ("lm", "k80"): 2.0}
TABLE = Throughputs(
    solo={(kind, n, worker): n * rate for (kind, worker), rate in SPEED.items() for n in WIDTHS},
    unconsolidated={("cnn", n, "v100"): 8.0 * n for n in WIDTHS},
    pairs={
        (worker, a, 1, b, 1): (0.8 * SPEED[a, worker], 0.8 * SPEED[b, worker])
        for worker in ("v100", "k80")
        for a in ("cnn", "lm")
        for b in ("cnn", "lm")
    },
)
Records = list[tuple[float, Sequence[Fact]]]


class WatchedCore(Core):
    """A core that is checked after every message."""

    def __init__(self, state: SchedulerState | None = None) -> None:
        super().__init__(state)
        self.ended: dict[str, tuple[Any, ...]] = {}
        self.messages = 0
        self._on = {kind: self._watched(on) for kind, on in self._on.items()}

    def _watched(self, on: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def handler(out: Any, message: Any) -> None:
            on(out, message)
            self.messages += 1
            check(self.state)
            self.see_ends()

        return handler

    def see_ends(self) -> None:
        """Promise P3: a job that has ended never changes again."""
        for name in [name for name in self.state.jobs if name not in self.state.active]:
            job = self.state.jobs[name]
            end = (job.state, job.ended_s, job.why)
            assert self.ended.setdefault(name, end) == end, f"job {name} changed after its end"


class Kept:
    """A journal in memory."""

    def __init__(self) -> None:
        self.records: Records = []

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Keep one record."""
        self.records.append((now_s, list(facts)))

    def read(self) -> Any:
        """Return all facts in order."""
        return ((now_s, fact) for now_s, facts in self.records for fact in facts)


class StageWorld(SimWorld):
    """A simulated world that accepts jobs at any time, and whose scheduler can die."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.refusals: list[Reply] = []

    def perform(self, effect: Effect) -> None:
        """Carry out the effect, and store a refusal for the test."""
        if isinstance(effect, Reply) and effect.error:
            self.refusals.append(effect)
        super().perform(effect)

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Call `before`, then return everything that is due."""
        self.before()
        return await super().next()

    def submit(self, at_s: float, specs: Sequence[JobSpec], truth: JobTruth, **more: Any) -> None:
        """Let this submission arrive at `at_s`; its jobs behave as `truth` describes."""
        self._numbers += 1
        call = f"stage{self._numbers}"
        jobs = sum(max(len(spec.array), 1) for spec in specs)
        self._requests[call] = Arrival(at_s, specs[0], (truth,) * jobs)
        self.at(at_s, SubmitJobs(call=call, specs=tuple(specs), **more))

    def forget_scheduler(self) -> None:
        """Drop everything that a killed scheduler loses: timers, questions to its solver, messages to it."""
        self._timers.clear()
        self._messages.clear()
        self._scheduled = sorted(event for event in self._scheduled if not isinstance(event[2], Solved))


class Jammable(Machines):
    """Machines of which some can start nothing, as with a full disk."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.jammed: set[str] = set()

    def jam(self, now_s: float, name: str) -> list[Message]:
        """Let every start on this node fail from now on."""
        self.jammed.add(name)
        return []

    def unjam(self, now_s: float, name: str) -> list[Message]:
        """Let starts on this node succeed again."""
        self.jammed.remove(name)
        return []

    def _start(self, now_s: float, node: Node, lease: Lease) -> None:
        if node.spec.name not in self.jammed:
            return super()._start(now_s, node, lease)
        saved = self.saved.get(lease.job, NEVER)[1]
        self._exits.append((node, ProcessExited(lease.id, "node_failed", saved, saved, 0.0, 0.0)))
        return None


@dataclass
class Stage:
    """Nodes, a scheduler with these settings, and a world in which a test schedules events with `world.at`."""

    nodes: Iterable[NodeSpec]
    settings: Settings = field(default_factory=Settings)
    # Options of FaultyLink; None for a network without faults.
    link: Mapping[str, Any] | None = None
    solver: Callable[[Solve], Solved] = answer
    solver_latency_s: float = 0.0
    limits: Limits = LIMITS
    silence_s: float = 0.0
    seed: int = 0
    table: Throughputs = TABLE
    # Whether the scheduler gets the table of rates.
    knows_rates: bool = True

    def __post_init__(self) -> None:
        """Set everything up, without running anything."""
        self.physics = Physics(self.table, seed=self.seed)
        self.real = Jammable(self.physics, limits=self.limits, silence_s=self.silence_s)
        self.machines: Any = self.real
        if self.link is not None:
            self.machines = FaultyLink(self.real, seed=self.seed, **self.link)
        self.core = WatchedCore()
        self.journal = Kept()
        self._until_s = 0.0
        self.world = StageWorld(
            self.machines,
            (),
            self._solve,
            solver_latency_s=self.solver_latency_s,
            over=lambda now_s: now_s > self._until_s,
        )
        self.world.before = self.see_processes
        self.world.at(0.0, Configure(settings=self.settings))
        if self.knows_rates:
            solo = [(*key, rate) for key, rate in sorted(self.table.solo.items())]
            spread = [(*key, rate) for key, rate in sorted(self.table.unconsolidated.items())]
            pairs = [
                (kind, a, b, n, *rates)
                for (kind, a, n, b, _), rates in sorted(self.table.pairs.items())
                if a <= b
            ]
            self.world.at(0.0, GiveRates(solo=solo, unconsolidated=spread, pairs=pairs))
        for spec in self.nodes:
            self.world.at(0.0, lambda now_s, spec=spec: self.machines.join(now_s, spec))

    def _solve(self, question: Solve) -> Solved:
        # A test may have replaced the solver meanwhile.
        return self.solver(question)

    @property
    def state(self) -> SchedulerState:
        """The scheduler's state."""
        return self.core.state

    def until(self, at_s: float) -> None:
        """Let the world run up to and including `at_s`."""
        self._until_s = max(self._until_s, at_s)
        asyncio.run(drive(self.core, self.world, self.journal))
        self.world.now_s = max(self.world.now_s, at_s)

    def see_processes(self) -> None:
        """Check P5 on the machines: a GPU runs one job or one pair, and the scheduler's state has each of them."""
        # While messages are under way, the scheduler may not have received an exit yet.
        if self.world._messages:
            return
        on: dict[str, list[str]] = {}
        for lease, gang in self.real.gangs.items():
            for gpu in gang.lease.gpus:
                if gpu.rpartition(":")[0] in gang.present:
                    on.setdefault(gpu, []).append(lease)
                    holding = self.state.leases.get(lease)
                    known = holding is not None and holding.phase in HOLDING
                    assert known, f"lease {lease} runs on {gpu}, which the scheduler considers free"
        for gpu, leases in on.items():
            gangs = [self.real.gangs[lease].lease for lease in leases]
            assert len(leases) <= 2, f"{leases} run on {gpu}"
            assert len({gang.job for gang in gangs}) == len(leases), f"a job runs twice on {gpu}"
            assert len({gang.gpus for gang in gangs}) == 1, f"{leases} run on {gpu} and are no pair"
        jobs = [gang.lease.job for gang in self.real.gangs.values()]
        assert len(jobs) == len(set(jobs)), "two attempts of one job run"

    def restart(self, downtime_s: float = 0.0, *, links_drop: bool = True) -> None:
        """Kill the scheduler and start another one from its records, while the machines keep running."""
        now_s = self.world.now_s
        self.world.forget_scheduler()
        back_s = now_s + downtime_s
        cut = [name for name, node in self.real.nodes.items() if links_drop and node.reachable]
        for name in cut:
            self.real.cut(now_s, name)
        self.real.silence_s, usual = 1e9, self.real.silence_s
        while self.real.next_s() <= back_s:
            # What the nodes report here is lost: no scheduler is listening.
            self.real.advance(self.real.next_s())
        self.real.silence_s = usual
        self.core = WatchedCore(replayed(self.journal.records))
        self.world.now_s = back_s
        self._take_over(back_s)
        for name, node in self.real.nodes.items():
            if links_drop and node.up and name in cut:
                self.world._messages += self.machines.mend(back_s, name)
            elif not node.reachable:
                self.world._messages.append(NodeSilent(node=name))

    def _take_over(self, now_s: float) -> None:
        outcome = self.core.take_over(now_s)
        check(self.core.state)
        self.journal.append(outcome.now_s, outcome.facts)
        for effect in outcome.effects:
            self.world.perform(effect)

    def completions(self) -> dict[str, int]:
        """Return how often each job completed."""
        counts: dict[str, int] = {}
        leases: dict[str, str] = {}
        for _, facts in self.journal.records:
            for fact in facts:
                for lease in getattr(fact, "granted", ()):
                    leases[lease.id] = lease.job
                if isinstance(fact, JobMoved):
                    assert fact.move != "complete"
                if isinstance(fact, LeaseClosed) and fact.exit.outcome == "finished":
                    job = leases[fact.exit.lease]
                    counts[job] = counts.get(job, 0) + 1
        return counts


def replayed(records: Iterable[tuple[float, Sequence[Fact]]]) -> SchedulerState:
    """Return the state that these records add up to."""
    state = SchedulerState()
    for now_s, facts in records:
        for fact in facts:
            apply(state, now_s, fact)
    return state
