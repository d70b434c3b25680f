"""A journal read as a workload: what came when, on which cluster, so that another policy can be tried on it.

Rules: requests, what people did to jobs, nodes, settings and prices come as they came. What nobody said of jobs and
machines is what they did (past_work.py), or what a simulation says of itself (made_by.py). What cannot be carried
over is counted in `notes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from msgspec import structs

from scheduler.core import facts as f
from scheduler.core.messages import (
    Configure,
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    NodeReport,
    SetPrices,
)
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Lease, nodes_of
from scheduler.model.settings import Settings
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth
from scheduler.sim.engine.world import Arrival, Event
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.replay.made_by import MadeBy, read_made_by
from scheduler.sim.replay.past_work import PastWork
from scheduler.sim.scenario.faults import SPOT, NodeEvent, What, strike
from scheduler.sim.scenario.reclaims import Vacation, vacations
from scheduler.sim.simulate import SimOptions
from traces.costs import Cost
from traces.throughputs import Key, PairKey, PairRates, Throughputs

BY_PEOPLE = (Move.CANCEL, Move.HOLD, Move.RELEASE, Move.REQUEUE)
UNKNOWN_DEPENDENCY = "jobs that waited for one that is left out do not wait for it"
CHANGED_NODE = "nodes that changed while they were there stay as they were"
Happening = Message | NodeEvent | NodeSpec | f.GpusBroken


class History:
    """Takes facts in, then gives a run. `metrics` says what really happened."""

    def __init__(self, meta: Mapping[str, str] | None = None) -> None:
        """`meta`: the words about the journal."""
        self.metrics = Metrics()
        self.settings: Settings | None = None  # at first
        self.work = PastWork()
        self._made_by = read_made_by(meta or {})
        self._start_s: float | None = None
        self._submitted: dict[str, tuple[float, JobSpec]] = {}
        self._stopped: set[str] = set()  # by people, or by limits of their own
        self._leases: dict[str, Lease] = {}
        self._told: list[f.RatesGiven] = []  # at the start
        self._later: list[f.RatesGiven] = []
        self._nodes: dict[str, NodeSpec] = {}
        self._away: set[str] = set()
        self._happened: list[tuple[float, Happening]] = []
        self._commands: list[tuple[float, JobCommand]] = []
        self._changed: Counter[str] = Counter()

    @property
    def notes(self) -> Counter[str]:
        """What the run of `options` does not have as it was, and how often."""
        return self._changed + +self.work.notes

    def take(self, now_s: float, fact: f.Fact) -> None:
        """One fact after the other."""
        if self._start_s is None:
            self._start_s = now_s
        at_s = now_s - self._start_s
        self.metrics.observe(at_s, fact)
        match fact:
            case f.JobSubmitted():
                self._submitted[fact.job] = (at_s, fact.spec)
            case f.RoundPlanned() | f.GpusFilled():
                self._leases.update({lease.id: lease for lease in fact.granted})
            case f.LeaseClosed():
                lease = self._leases.pop(fact.exit.lease, None)
                if lease is not None:
                    self.work.closed(lease, fact)
            case f.JobMoved():
                self._moved(at_s, fact)
            case f.Configured():
                self._configured(at_s, fact)
            case f.RatesGiven():
                self._rates(at_s, fact)
            case f.PricesSet():
                self._happened.append((at_s, SetPrices(price_per_gpu_hour=fact.price_per_gpu_hour)))
            case f.NodeJoined() | f.NodeMoved() | f.NodeRemoved() | f.GpusBroken() | f.LeasesResumed():
                self._node(at_s, fact)

    def options(
        self,
        *,
        policy: str | None = None,
        throughputs: Throughputs | None = None,
        restart_s: float | None = None,
        checkpoint_s: float | None = None,
    ) -> SimOptions:
        """The same again, but for what is given here."""
        self.work.notes.clear()
        settings = self._under(policy, self.settings or Settings())
        made = self._made(settings.seed)
        if restart_s is not None:
            made = structs.replace(made, restart_s=restart_s, costs={})
        if checkpoint_s is not None:
            made = structs.replace(made, checkpoint_s=checkpoint_s, costs={})
        kinds = tuple(dict.fromkeys(spec.worker_type for spec in self._nodes.values()))
        told = throughputs or table_of(self._told)
        table = throughputs or self._true_rates(told, kinds)
        return SimOptions(
            **made.conditions,
            cluster={kind: 0 for kind in kinds if kind in told.worker_types},  # nodes join by events
            arrivals=self._arrivals(made, table, kinds),
            commands=tuple(self._commands),
            throughputs=table,
            believed=told,
            settings=settings,
            prices={},
            events=(
                *((at_s, self._event(policy, what)) for at_s, what in self._happened),
                *self._vacations((made.checkpoint_s, *(cost.checkpoint_s for cost in made.costs.values()))),
            ),
        )

    # jobs

    def _made(self, seed: int) -> MadeBy:
        """What is true beside the facts: what the simulation says of itself, else what is usual here."""
        if self._made_by is not None:
            return self._made_by
        usual = self.work.cost
        return MadeBy(seed=seed, restart_s=usual.restart_s, checkpoint_s=usual.checkpoint_s)

    def _arrivals(self, made: MadeBy, table: Throughputs, kinds: tuple[str, ...]) -> list[Arrival]:
        """Requests as they were made: members of an array together, as far as it is known what they had to do."""
        usual = Cost(made.restart_s, made.checkpoint_s)
        groups: dict[str, list[tuple[str, JobTruth]]] = {}
        for name, (_, spec) in self._submitted.items():
            cost = made.costs.get(spec.job_type, usual)
            truth = self.work.truth(name, spec, table, kinds, cost, name in self._stopped)
            if truth is not None:
                truth = structs.replace(truth, save_every_s=made.save_every_s)
                base = name.partition("_")[0] if spec.array else name
                groups.setdefault(base, []).append((name, truth))
        known = {*groups, *(name for members in groups.values() for name, _ in members)}
        arrivals = []
        for members in groups.values():
            names, truths = zip(*members, strict=True)
            at_s, spec = self._submitted[names[0]]
            arrivals.append(Arrival(at_s, self._request(spec, names, known), truths, names))
        return arrivals

    def _request(self, spec: JobSpec, names: tuple[str, ...], known: set[str]) -> JobSpec:
        """The whole of it, but for jobs that nobody can wait for; the world puts in what they are called now."""
        after = tuple(dependency for dependency in spec.after if dependency.job in known)
        self.work.notes[UNKNOWN_DEPENDENCY] += len(after) < len(spec.after)
        array = tuple(int(name.partition("_")[2]) for name in names) if spec.array else ()
        return structs.replace(spec, after=after, array=array)

    def _moved(self, at_s: float, fact: f.JobMoved) -> None:
        """What people did is done again; what the scheduler did is for the scheduler to do."""
        if fact.move in BY_PEOPLE and fact.why.partition(" by ")[0] == fact.move:
            action = cast(Any, str(fact.move))
            self._commands.append((at_s, JobCommand(job=fact.job, action=action, user=fact.by)))
            if fact.move == Move.CANCEL:
                self._stopped.add(fact.job)
        elif fact.move == Move.FAIL and fact.job in self._submitted:
            spec = self._submitted[fact.job][1]
            if not spec.time_limit_s is spec.max_cost is None:
                self._stopped.add(fact.job)

    # what the scheduler was told

    def _configured(self, at_s: float, fact: f.Configured) -> None:
        if self.settings is None:
            self.settings = fact.settings
        else:
            self._happened.append((at_s, Configure(settings=fact.settings, user=fact.by)))

    def _rates(self, at_s: float, fact: f.RatesGiven) -> None:
        if at_s > 0:
            rows = GiveRates(solo=fact.solo, unconsolidated=fact.unconsolidated, pairs=fact.pairs)
            self._happened.append((at_s, rows))
            self._later.append(fact)
        else:
            self._told.append(fact)

    def _true_rates(self, told: Throughputs, kinds: tuple[str, ...]) -> Throughputs:
        """Those of the simulation, where it was one; else what was told at any time, or measured."""
        if self._made_by is not None:
            return told if self._made_by.rates is None else self._made_by.rates.table
        jobs = [(name, spec) for name, (_, spec) in self._submitted.items()]
        return self.work.table(table_of((*self._told, *self._later)), jobs, kinds)

    @staticmethod
    def _under(policy: str | None, settings: Settings) -> Settings:
        return settings if policy is None else structs.replace(settings, policy=policy)

    # nodes

    def _node(
        self, at_s: float, fact: f.NodeJoined | f.NodeMoved | f.NodeRemoved | f.GpusBroken | f.LeasesResumed
    ) -> None:
        match fact:
            case f.NodeJoined(spec=spec):
                if spec.name not in self._nodes or spec.name in self._away:
                    self._happened.append((at_s, spec))
                else:
                    self._changed[CHANGED_NODE] += 1
                self._nodes[spec.name] = spec
                self._away.discard(spec.name)
            case f.NodeMoved(node=node, state=NodeState.SILENT | NodeState.LOST):
                if node not in self._away:
                    self._away.add(node)
                    self._happened.append((at_s, NodeEvent(at_s, node, "crash")))
            case f.NodeMoved(node=node, state=state):
                action = cast(Any, "resume" if state == NodeState.UP else "drain")
                user = fact.why.partition(" by ")[2]
                told = NodeCommand(node=node, action=action, user=user, by_agent=fact.left)
                self._happened.append((at_s, told))
            case f.NodeRemoved(node=node):
                self._away.add(node)
                self._happened.append((at_s, NodeCommand(node=node, action="remove")))
            case f.GpusBroken():
                self._happened.append((at_s, fact))
            case f.LeasesResumed():
                self._resumed(fact.leases)

    def _vacations(self, checkpoints_s: tuple[float, ...]) -> Iterable[Vacation]:
        """A spot node that was gone after its notice had told its jobs to save and leave."""
        events = []
        for at_s, what in self._happened:
            if isinstance(what, NodeCommand) and (what.action, what.user) == ("drain", SPOT):
                events.append(NodeEvent(at_s, what.node, "notice"))
            elif isinstance(what, NodeEvent | NodeSpec):
                events.append(what if isinstance(what, NodeEvent) else NodeEvent(at_s, what.name, "join"))
        return vacations(events, checkpoints_s, ("crash",))

    def _resumed(self, leases: tuple[str, ...]) -> None:
        """Their nodes had not died: only the link was gone."""
        for node in {
            name for one in leases if one in self._leases for name in nodes_of(self._leases[one].gpus)
        }:
            mine = [
                (number, what)
                for number, (_, what) in enumerate(self._happened)
                if (isinstance(what, NodeEvent) and what.node == node)
                or (isinstance(what, NodeSpec) and what.name == node)
            ]
            (went, _), (came, what) = mine[-2:]
            if isinstance(what, NodeSpec):
                for number, event in ((went, "cut"), (came, "mend")):
                    at_s = self._happened[number][0]
                    self._happened[number] = (at_s, NodeEvent(at_s, node, cast(What, event)))

    def _event(self, policy: str | None, what: Happening) -> Callable[[Machines], Event]:
        """It happens again."""
        match what:
            case NodeSpec():
                return lambda machines: lambda now_s: machines.join(now_s, what)
            case NodeEvent():
                return lambda machines: lambda now_s: strike(machines, now_s, what)
            case f.GpusBroken():
                return lambda machines: lambda now_s: _broken(machines, what)
            case Configure():
                again = structs.replace(what, settings=self._under(policy, what.settings))
                return lambda machines: again
        return lambda machines: what


def table_of(facts: Iterable[f.RatesGiven]) -> Throughputs:
    """Everything that was told; of figures that were told twice, the later."""
    solo: dict[Key, float] = {}
    spread: dict[Key, float] = {}
    pairs: dict[PairKey, PairRates] = {}
    for fact in facts:
        solo.update({row[:3]: row[3] for row in fact.solo})
        spread.update({row[:3]: row[3] for row in fact.unconsolidated})
        for kind, a, b, gpus, rate_a, rate_b in fact.pairs:
            pairs[kind, a, gpus, b, gpus] = (rate_a, rate_b)
            pairs[kind, b, gpus, a, gpus] = (rate_b, rate_a)
    return Throughputs(solo, spread, pairs, source="the journal")


def _broken(machines: Machines, fact: f.GpusBroken) -> list[Message]:
    """A node that is there reports them."""
    node = machines.nodes[fact.node]
    if not node.reachable:
        return []
    return [NodeReport(node=fact.node, generation=node.core.generation, broken_gpus=fact.gpus)]
