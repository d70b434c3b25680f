"""A journal read as a workload: what came when and on which cluster, so that another policy can be tried on it.

Rules: requests, what users did to jobs, nodes, settings and prices come as they came. The rest of the truth about jobs
and machines is what they did (past_work.py), or what a simulation says of itself (made_by.py). Whatever cannot be
carried over is counted in `notes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
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
from scheduler.sim.engine.world import Arrival, Change
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.replay.made_by import MadeBy, read_made_by
from scheduler.sim.replay.past_work import PastWork
from scheduler.sim.scenario.faults import SPOT, NodeEvent, What, strike
from scheduler.sim.scenario.reclaims import vacations
from scheduler.sim.simulate import SimOptions
from traces.costs import Cost
from traces.throughputs import Throughputs

BY_PEOPLE = (Move.CANCEL, Move.HOLD, Move.RELEASE, Move.REQUEUE)
UNKNOWN_DEPENDENCY = "jobs that waited for one that is left out do not wait for it"
CHANGED_NODE = "nodes that changed while they were there stay as they were"
Happening = Message | NodeEvent | NodeSpec | f.GpusBroken


class History:
    """Takes facts in, and makes a run of them. `metrics` measures what really happened."""

    def __init__(self, meta: Mapping[str, str] | None = None) -> None:
        """`meta`: the journal's metadata."""
        self.metrics = Metrics()
        # The settings at first.
        self.settings: Settings | None = None
        self.work = PastWork()
        self._made_by = read_made_by(meta or {})
        self._start_s: float | None = None
        self._submitted: dict[str, tuple[float, JobSpec]] = {}
        # Jobs that users or their own limits stopped.
        self._stopped: set[str] = set()
        self._leases: dict[str, Lease] = {}
        # Rates given at the start, and later.
        self._told: list[f.RatesGiven] = []
        self._later: list[f.RatesGiven] = []
        self._nodes: dict[str, NodeSpec] = {}
        self._away: set[str] = set()
        self._happened: list[tuple[float, Happening]] = []
        self._commands: list[tuple[float, JobCommand]] = []
        self._changed: Counter[str] = Counter()

    @property
    def notes(self) -> Counter[str]:
        """The differences between the run of `options` and what happened, with their numbers."""
        return self._changed + +self.work.notes

    def take(self, now_s: float, fact: f.Fact) -> None:
        """Take one fact; they come in order."""
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
        """Make the run that repeats the history, except for what is given here."""
        self.work.notes.clear()
        settings = self._under(policy, self.settings or Settings())
        made_by = self._conditions(settings.seed)
        if restart_s is not None:
            made_by = structs.replace(made_by, restart_s=restart_s, costs={})
        if checkpoint_s is not None:
            made_by = structs.replace(made_by, checkpoint_s=checkpoint_s, costs={})
        kinds = tuple(dict.fromkeys(spec.worker_type for spec in self._nodes.values()))
        rates_given = throughputs or table_of(self._told)
        table = throughputs or self._true_rates(rates_given, kinds)
        return SimOptions(
            **made_by.conditions,
            cluster={kind: 0 for kind in kinds if kind in rates_given.worker_types},
            arrivals=self._arrivals(made_by, table, kinds),
            commands=tuple(self._commands),
            throughputs=table,
            believed=rates_given,
            settings=settings,
            prices={},
            events=(
                *(self._again(policy, at_s, happening) for at_s, happening in self._happened),
                *self._vacations(made_by.checkpoints_s),
            ),
        )

    # Jobs.

    def _conditions(self, seed: int) -> MadeBy:
        """Return the conditions that no fact tells: those of the simulation, else what was usual in this journal."""
        if self._made_by is not None:
            return self._made_by
        usual = self.work.cost
        return MadeBy(seed=seed, restart_s=usual.restart_s, checkpoint_s=usual.checkpoint_s)

    def _arrivals(self, made_by: MadeBy, table: Throughputs, kinds: tuple[str, ...]) -> list[Arrival]:
        """Return requests as they were made, arrays whole, of all jobs whose work is known."""
        usual = Cost(made_by.restart_s, made_by.checkpoint_s)
        groups: dict[str, list[tuple[str, JobTruth]]] = {}
        for name, (_, spec) in self._submitted.items():
            cost = made_by.costs.get(spec.job_type, usual)
            truth = self.work.truth(name, spec, table, kinds, cost, name in self._stopped)
            if truth is not None:
                truth = structs.replace(truth, save_every_s=made_by.save_every_s)
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
        """Return the request without dependencies on jobs that are left out; the world puts the new ids in."""
        after = tuple(dependency for dependency in spec.after if dependency.job in known)
        self.work.notes[UNKNOWN_DEPENDENCY] += len(after) < len(spec.after)
        array = tuple(int(name.partition("_")[2]) for name in names) if spec.array else ()
        return structs.replace(spec, after=after, array=array)

    def _moved(self, at_s: float, fact: f.JobMoved) -> None:
        """Repeat what users did; what the scheduler did is left to the scheduler."""
        if fact.move in BY_PEOPLE and fact.why.partition(" by ")[0] == fact.move:
            action = cast(Any, str(fact.move))
            self._commands.append((at_s, JobCommand(job=fact.job, action=action, user=fact.by)))
            if fact.move == Move.CANCEL:
                self._stopped.add(fact.job)
        elif fact.move == Move.FAIL and fact.job in self._submitted:
            spec = self._submitted[fact.job][1]
            if not spec.time_limit_s is spec.max_cost is None:
                self._stopped.add(fact.job)

    # Settings and rates.

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

    def _true_rates(self, rates_given: Throughputs, kinds: tuple[str, ...]) -> Throughputs:
        """Return the simulation's own rates; of a live journal those given at any time, or measured."""
        if self._made_by is not None:
            return rates_given if self._made_by.rates is None else self._made_by.rates.table
        jobs = [(name, spec) for name, (_, spec) in self._submitted.items()]
        return self.work.table(table_of([*self._told, *self._later]), jobs, kinds)

    @staticmethod
    def _under(policy: str | None, settings: Settings) -> Settings:
        return settings if policy is None else structs.replace(settings, policy=policy)

    # Nodes.

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
                command = NodeCommand(node=node, action=action, user=user, by_agent=fact.left)
                self._happened.append((at_s, command))
            case f.NodeRemoved(node=node, by=user):
                self._away.add(node)
                self._happened.append((at_s, NodeCommand(node=node, action="remove", user=user)))
            case f.GpusBroken():
                self._happened.append((at_s, fact))
            case f.LeasesResumed():
                self._resumed(fact.leases)

    def _vacations(self, checkpoints_s: tuple[float, ...]) -> Iterable[Change]:
        """Return when jobs of reclaimed spot nodes were asked to save and leave."""
        events = []
        for at_s, happening in self._happened:
            if isinstance(happening, NodeCommand) and (happening.action, happening.user) == ("drain", SPOT):
                events.append(NodeEvent(at_s, happening.node, "notice"))
            elif isinstance(happening, NodeEvent | NodeSpec):
                events.append(
                    happening if isinstance(happening, NodeEvent) else NodeEvent(at_s, happening.name, "join")
                )
        return vacations(events, checkpoints_s, ("crash",))

    def _resumed(self, leases: tuple[str, ...]) -> None:
        """Turn the deaths of these leases' nodes into lost links: the nodes came back with their jobs."""
        for node in {
            name for lease in leases if lease in self._leases for name in nodes_of(self._leases[lease].gpus)
        }:
            events = [
                (number, happening)
                for number, (_, happening) in enumerate(self._happened)
                if (isinstance(happening, NodeEvent) and happening.node == node)
                or (isinstance(happening, NodeSpec) and happening.name == node)
            ]
            (went, _), (came, happening) = events[-2:]
            if isinstance(happening, NodeSpec):
                for number, event in ((went, "cut"), (came, "mend")):
                    at_s = self._happened[number][0]
                    self._happened[number] = (at_s, NodeEvent(at_s, node, cast(What, event)))

    def _again(self, policy: str | None, at_s: float, happening: Happening) -> Change:
        """Return what makes a past event happen again."""
        match happening:
            case NodeSpec():
                return at_s, partial(Machines.join, spec=happening)
            case NodeEvent():
                return at_s, partial(strike, event=happening, pool={})
            case f.GpusBroken():
                return at_s, partial(_broken, fact=happening)
            case Configure():
                return at_s, structs.replace(happening, settings=self._under(policy, happening.settings))
        return at_s, happening


def table_of(facts: Sequence[f.RatesGiven]) -> Throughputs:
    """Return all rates that were given; of those given twice, the later."""
    return Throughputs.from_rows(
        solo=[row for fact in facts for row in fact.solo],
        unconsolidated=[row for fact in facts for row in fact.unconsolidated],
        pairs=[row for fact in facts for row in fact.pairs],
        source="the journal",
    )


def _broken(machines: Machines, now_s: float, fact: f.GpusBroken) -> list[Message]:
    """Let the node report its broken GPUs, if it can be reached."""
    node = machines.nodes[fact.node]
    if not node.reachable:
        return []
    return [NodeReport(node=fact.node, generation=node.core.generation, broken_gpus=fact.gpus)]
