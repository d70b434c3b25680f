"""A journal as a workload: the requests and the cluster over time, so that another policy can be tried on them.

Rules: requests, users' commands, nodes, settings and prices arrive as they did in the journal. The rest of the truth is
derived from the leases (past_work.py); if a simulation made the journal, its conditions are used as well (made_by.py).
`notes` counts what cannot be reproduced.
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
    UpdateJob,
)
from scheduler.model.cluster import NodeSpec, NodeState, commanded_by
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Lease, nodes_of
from scheduler.model.plans import Plan
from scheduler.model.settings import Settings
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth
from scheduler.sim.engine.world import Arrival, Change
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.replay.made_by import MadeBy, read_made_by
from scheduler.sim.replay.past_work import PastWork
from scheduler.sim.scenario.faults import SPOT, EventName, NodeEvent, strike
from scheduler.sim.scenario.reclaims import requests_to_stop
from scheduler.sim.simulate import SimOptions
from traces.costs import Cost
from traces.throughputs import Throughputs

USER_MOVES = (Move.CANCEL, Move.HOLD, Move.RELEASE, Move.REQUEUE)
UNKNOWN_DEPENDENCY = "jobs that do not wait for a dependency, because it is left out"
CHANGED_NODE = "changes of nodes that were present, which are not repeated"
PastEvent = Message | NodeEvent | NodeSpec | f.GpusBroken


class History:
    """Collects facts, and makes a simulation that repeats them. `metrics` measures what really happened."""

    def __init__(self, meta: Mapping[str, str] | None = None) -> None:
        """`meta` is the journal's metadata."""
        self.metrics = Metrics()
        # The first settings.
        self.settings: Settings | None = None
        self.work = PastWork()
        self._made_by = read_made_by(meta or {})
        self._start_s: float | None = None
        self._submitted: dict[str, tuple[float, JobSpec]] = {}
        # The current specs of jobs that users updated.
        self._updated: dict[str, JobSpec] = {}
        # The plans that updates gave to jobs which had plans already.
        self._later_plans: dict[str, tuple[Plan, ...]] = {}
        # Jobs that users cancelled, and failed jobs with a limit on time or cost.
        self._stopped: set[str] = set()
        self._leases: dict[str, Lease] = {}
        self._rates_at_start: list[f.RatesGiven] = []
        self._rates_later: list[f.RatesGiven] = []
        self._nodes: dict[str, NodeSpec] = {}
        self._away: set[str] = set()
        self._past_events: list[tuple[float, PastEvent]] = []
        self._commands: list[tuple[float, JobCommand | UpdateJob]] = []
        self._notes: Counter[str] = Counter()

    @property
    def notes(self) -> Counter[str]:
        """How often the simulation of `options` differs from what happened, by kind of difference."""
        return self._notes + +self.work.notes

    def add(self, now_s: float, fact: f.Fact) -> None:
        """Add a fact. Facts must come in the journal's order."""
        if self._start_s is None:
            self._start_s = now_s
        at_s = now_s - self._start_s
        self.metrics.observe(at_s, fact)
        match fact:
            case f.JobSubmitted():
                self._submitted[fact.job] = (at_s, fact.spec)
            case f.JobUpdated():
                self._add_update(at_s, fact)
            case f.RoundPlanned() | f.GpusFilled():
                self._leases.update({lease.id: lease for lease in fact.granted})
            case f.LeaseClosed():
                lease = self._leases.pop(fact.exit.lease, None)
                if lease is not None:
                    self.work.add(lease, fact)
            case f.JobMeasured():
                self.work.add_measured(fact)
            case f.JobMoved():
                self._add_move(at_s, fact)
            case f.Configured():
                self._add_settings(at_s, fact)
            case f.RatesGiven():
                self._add_rates(at_s, fact)
            case f.PricesSet():
                self._past_events.append((at_s, SetPrices(price_per_gpu_hour=fact.price_per_gpu_hour)))
            case f.NodeJoined() | f.NodeMoved() | f.NodeRemoved() | f.GpusBroken() | f.LeasesResumed():
                self._add_node_event(at_s, fact)

    def options(
        self,
        *,
        policy: str | None = None,
        throughputs: Throughputs | None = None,
        restart_s: float | None = None,
        checkpoint_s: float | None = None,
    ) -> SimOptions:
        """Return the simulation that repeats the history, except for the arguments given here."""
        self.work.notes.clear()
        settings = _with_policy(policy, self.settings or Settings())
        made_by = self._conditions(settings.seed)
        # Times that jobs have measured themselves count only in live journals, and unless others are given.
        own_costs = self._made_by is None and restart_s is None and checkpoint_s is None
        if restart_s is not None:
            made_by = structs.replace(made_by, restart_s=restart_s, costs={})
        if checkpoint_s is not None:
            made_by = structs.replace(made_by, checkpoint_s=checkpoint_s, costs={})
        kinds = tuple(dict.fromkeys(spec.worker_type for spec in self._nodes.values()))
        rates_given = throughputs or _table(self._rates_at_start)
        table = throughputs or self._true_rates(rates_given, kinds)
        return SimOptions(
            **made_by.conditions,
            cluster={kind: 0 for kind in kinds if kind in rates_given.worker_types},
            arrivals=self._arrivals(made_by, table, kinds, own_costs),
            commands=tuple(self._commands),
            throughputs=table,
            believed=rates_given,
            settings=settings,
            prices={},
            events=(
                *(_repeated(policy, at_s, event) for at_s, event in self._past_events),
                *self._requests_to_stop(made_by.checkpoints_s),
            ),
        )

    # Jobs.

    def _conditions(self, seed: int) -> MadeBy:
        """Return the conditions of the simulation that made the journal; for a live journal, its usual times."""
        if self._made_by is not None:
            return self._made_by
        usual = self.work.cost
        return MadeBy(seed=seed, restart_s=usual.restart_s, checkpoint_s=usual.checkpoint_s)

    def _arrivals(
        self, made_by: MadeBy, table: Throughputs, kinds: tuple[str, ...], own_costs: bool
    ) -> list[Arrival]:
        """Return the requests, with whole arrays, for all jobs whose work is known."""
        usual = Cost(made_by.restart_s, made_by.checkpoint_s)
        groups: dict[str, list[tuple[str, JobTruth]]] = {}
        for name, (_, spec) in self._submitted.items():
            own_cost = self.work.cost_of(name) if own_costs else None
            cost = own_cost or made_by.costs.get(spec.job_type, usual)
            spec = structs.replace(spec, plans=(*spec.plans, *self._later_plans.get(name, ())))
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
            own_cost = self.work.cost_of(names[0]) if own_costs else None
            if spec.restart_cost_s is None and own_cost is not None:
                # The scheduler had measured it, too; in the replay, jobs report nothing about themselves.
                spec = structs.replace(spec, restart_cost_s=own_cost.restart_s + own_cost.checkpoint_s)
            arrivals.append(Arrival(at_s, self._request(spec, names, known), truths, names))
        return arrivals

    def _request(self, spec: JobSpec, names: tuple[str, ...], known: set[str]) -> JobSpec:
        """Return the request without dependencies on jobs that are left out. The world replaces the ids in it."""
        after = tuple(dependency for dependency in spec.after if dependency.job in known)
        self.work.notes[UNKNOWN_DEPENDENCY] += len(after) < len(spec.after)
        array = tuple(int(name.partition("_")[2]) for name in names) if spec.array else ()
        return structs.replace(spec, after=after, array=array)

    def _add_update(self, at_s: float, fact: f.JobUpdated) -> None:
        self._commands.append((at_s, UpdateJob(job=fact.job, changes=fact.changes, user=fact.by)))
        if fact.job in self._submitted:
            spec = self._updated.get(fact.job) or self._submitted[fact.job][1]
            self._updated[fact.job] = fact.changes.applied_to(spec)
            if spec.plans and fact.changes.plans:
                self._later_plans[fact.job] = (*self._later_plans.get(fact.job, ()), *fact.changes.plans)

    def _add_move(self, at_s: float, fact: f.JobMoved) -> None:
        """Add the command if a user moved the job. The scheduler's own moves are not repeated."""
        if fact.move in USER_MOVES and fact.why.partition(" by ")[0] == fact.move:
            action = cast(Any, str(fact.move))
            self._commands.append((at_s, JobCommand(job=fact.job, action=action, user=fact.by)))
            if fact.move == Move.CANCEL:
                self._stopped.add(fact.job)
        elif fact.move == Move.FAIL and fact.job in self._submitted:
            spec = self._updated.get(fact.job) or self._submitted[fact.job][1]
            if spec.time_limit_s is not None or spec.max_cost is not None:
                self._stopped.add(fact.job)

    # Settings and rates.

    def _add_settings(self, at_s: float, fact: f.Configured) -> None:
        if self.settings is None:
            self.settings = fact.settings
        else:
            self._past_events.append((at_s, Configure(settings=fact.settings, user=fact.by)))

    def _add_rates(self, at_s: float, fact: f.RatesGiven) -> None:
        if at_s > 0:
            rows = GiveRates(solo=fact.solo, unconsolidated=fact.unconsolidated, pairs=fact.pairs)
            self._past_events.append((at_s, rows))
            self._rates_later.append(fact)
        else:
            self._rates_at_start.append(fact)

    def _true_rates(self, rates_given: Throughputs, kinds: tuple[str, ...]) -> Throughputs:
        """Return the true rates of the simulation that made the journal.

        For a live journal, return all rates that the scheduler was ever given, and measured rates where it had none.
        """
        if self._made_by is not None:
            return rates_given if self._made_by.rates is None else self._made_by.rates.table
        jobs = [(name, spec) for name, (_, spec) in self._submitted.items()]
        return self.work.table(_table([*self._rates_at_start, *self._rates_later]), jobs, kinds)

    # Nodes.

    def _add_node_event(
        self, at_s: float, fact: f.NodeJoined | f.NodeMoved | f.NodeRemoved | f.GpusBroken | f.LeasesResumed
    ) -> None:
        match fact:
            case f.NodeJoined(spec=spec):
                if spec.name not in self._nodes or spec.name in self._away:
                    self._past_events.append((at_s, spec))
                else:
                    self._notes[CHANGED_NODE] += 1
                self._nodes[spec.name] = spec
                self._away.discard(spec.name)
            case f.NodeMoved(node=node, state=NodeState.SILENT | NodeState.LOST):
                if node not in self._away:
                    self._away.add(node)
                    self._past_events.append((at_s, NodeEvent(at_s, node, "crash")))
            case f.NodeMoved(node=node, state=state):
                action = cast(Any, "resume" if state == NodeState.UP else "drain")
                user = commanded_by(fact.why)
                command = NodeCommand(node=node, action=action, user=user, by_agent=fact.left)
                self._past_events.append((at_s, command))
            case f.NodeRemoved(node=node, by=user):
                self._away.add(node)
                self._past_events.append((at_s, NodeCommand(node=node, action="remove", user=user)))
            case f.GpusBroken():
                self._past_events.append((at_s, fact))
            case f.LeasesResumed():
                self._on_resumed(fact.leases)

    def _requests_to_stop(self, checkpoints_s: tuple[float, ...]) -> Iterable[Change]:
        """Return the changes by which the jobs of reclaimed spot nodes are asked to save and stop."""
        events = []
        for at_s, event in self._past_events:
            if isinstance(event, NodeCommand) and (event.action, event.user) == ("drain", SPOT):
                events.append(NodeEvent(at_s, event.node, "notice"))
            elif isinstance(event, NodeEvent):
                events.append(event)
            elif isinstance(event, NodeSpec):
                events.append(NodeEvent(at_s, event.name, "join"))
        return requests_to_stop(events, checkpoints_s, ("crash",))

    def _on_resumed(self, leases: tuple[str, ...]) -> None:
        """Turn the crashes of these leases' nodes into lost links, because the nodes came back with their jobs."""
        for node in {
            name for lease in leases if lease in self._leases for name in nodes_of(self._leases[lease].gpus)
        }:
            indexes = [
                index
                for index, (_, event) in enumerate(self._past_events)
                if (isinstance(event, NodeEvent) and event.node == node)
                or (isinstance(event, NodeSpec) and event.name == node)
            ]
            loss, return_ = indexes[-2:]
            if isinstance(self._past_events[return_][1], NodeSpec):
                self._replace(loss, node, "cut")
                self._replace(return_, node, "mend")

    def _replace(self, index: int, node: str, name: EventName) -> None:
        """Replace a past event by a node's event of this name, at the same time."""
        at_s = self._past_events[index][0]
        self._past_events[index] = (at_s, NodeEvent(at_s, node, name))


def _with_policy(policy: str | None, settings: Settings) -> Settings:
    return settings if policy is None else structs.replace(settings, policy=policy)


def _repeated(policy: str | None, at_s: float, event: PastEvent) -> Change:
    """Return the change that repeats a past event."""
    match event:
        case NodeSpec():
            return at_s, partial(Machines.join, spec=event)
        case NodeEvent():
            return at_s, partial(strike, event=event, pool={})
        case f.GpusBroken():
            return at_s, partial(_break_gpus, fact=event)
        case Configure():
            return at_s, structs.replace(event, settings=_with_policy(policy, event.settings))
    return at_s, event


def _table(facts: Sequence[f.RatesGiven]) -> Throughputs:
    """Return all rates that were given to the scheduler. If a rate was given twice, the later one counts."""
    return Throughputs.from_rows(
        solo=[row for fact in facts for row in fact.solo],
        unconsolidated=[row for fact in facts for row in fact.unconsolidated],
        pairs=[row for fact in facts for row in fact.pairs],
        source="the journal",
    )


def _break_gpus(machines: Machines, now_s: float, fact: f.GpusBroken) -> list[Message]:
    """Let a node report its broken GPUs, if its link is up."""
    node = machines.nodes[fact.node]
    if not node.reachable:
        return []
    return [NodeReport(node=fact.node, generation=node.core.generation, broken_gpus=fact.gpus)]
