"""A journal read as a workload: what came when, on which cluster, so that another policy can be tried on it.

Rules: jobs, nodes and prices come as they came. What a job had to do is what it did where nobody said; rates are
those that the scheduler was told, and where it was told none, those that were measured. What cannot be carried
over is counted in `notes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

from msgspec import structs

from scheduler.core import facts as f
from scheduler.core.messages import Message, NodeCommand, SetPrices
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Lease
from scheduler.model.settings import Settings
from scheduler.sim.changes import Change
from scheduler.sim.machines import Machines
from scheduler.sim.metrics import Metrics
from scheduler.sim.simulate import SimOptions
from scheduler.sim.world import Event
from traces.throughputs import Key, PairKey, PairRates, Throughputs
from traces.trace import TraceJob

Measured = dict[Key, tuple[float, float]]  # steps and seconds


class History:
    """Takes facts in, then gives a run. `metrics` says what really happened."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.settings: Settings | None = None
        self.notes: Counter[str] = Counter()
        self._start_s: float | None = None
        self._submitted: list[tuple[float, str, JobSpec]] = []
        self._done: dict[str, float] = {}  # steps by job, as its last lease ended
        self._ended: set[str] = set()
        self._leases: dict[str, Lease] = {}
        self._solo: dict[Key, float] = {}
        self._spread: dict[Key, float] = {}
        self._pairs: dict[PairKey, PairRates] = {}
        self._measured: Measured = {}
        self._starting_s: list[float] = []  # time without steps of leases that ended by themselves
        self._stopping_s: list[float] = []  # of leases that were stopped
        self._nodes: dict[str, NodeSpec] = {}
        self._away: set[str] = set()
        self._events: list[Change] = []

    def take(self, now_s: float, fact: f.Fact) -> None:
        """One fact after the other."""
        if self._start_s is None:
            self._start_s = now_s
        at_s = now_s - self._start_s
        self.metrics.observe(at_s, fact)
        match fact:
            case f.JobSubmitted():
                self._submitted.append((at_s, fact.job, fact.spec))
            case f.RoundPlanned() | f.GpusFilled():
                self._leases.update({lease.id: lease for lease in fact.granted})
            case f.LeaseClosed():
                self._closed(fact)
            case f.JobMoved():
                if fact.move in (Move.CANCEL, Move.FAIL):
                    self.notes["jobs that were cancelled or failed run as far as they came"] += 1
                    self._ended.add(fact.job)
            case f.Configured():
                self.settings = fact.settings
            case f.RatesGiven():
                self._rates(fact)
            case f.PricesSet():
                self._events.append((at_s, _told(SetPrices(price_per_gpu_hour=fact.price_per_gpu_hour))))
            case f.NodeJoined() | f.NodeMoved() | f.NodeRemoved() | f.GpusBroken():
                self._node(at_s, fact)

    @property
    def restart_s(self) -> float:
        """What a start usually took until the first step."""
        return round(max(median(self._starting_s), 0.0), 3) if self._starting_s else 0.0

    @property
    def checkpoint_s(self) -> float:
        """What a stop usually took."""
        return round(max(median(self._stopping_s) - self.restart_s, 0.0), 3) if self._stopping_s else 0.0

    def options(
        self,
        *,
        policy: str | None = None,
        throughputs: Throughputs | None = None,
        restart_s: float | None = None,
        checkpoint_s: float | None = None,
    ) -> SimOptions:
        """The same again, but for what is given here."""
        settings = self.settings or Settings()
        table = throughputs or self._table()
        kinds = {spec.worker_type: 0 for spec in self._nodes.values()}
        return SimOptions(
            cluster={kind: 0 for kind in kinds if kind in table.worker_types},  # nodes join by events
            jobs=self._jobs(table, kinds),
            throughputs=table,
            settings=settings if policy is None else structs.replace(settings, policy=policy),
            prices={},
            seed=settings.seed,
            restart_s=self.restart_s if restart_s is None else restart_s,
            checkpoint_s=self.checkpoint_s if checkpoint_s is None else checkpoint_s,
            events=tuple(self._events),
        )

    # jobs

    def _closed(self, fact: f.LeaseClosed) -> None:
        end, lease = fact.exit, self._leases.pop(fact.exit.lease, None)
        if lease is None:
            return
        gained = end.steps - self._done.get(lease.job, 0.0)
        self._done[lease.job] = end.steps if end.outcome in ("finished", "yielded") else end.saved
        idle_s = end.ran_s - end.stepping_s
        if end.outcome == "finished":
            self._starting_s.append(idle_s)
            self._ended.add(lease.job)
        elif end.outcome == "yielded" and end.stepping_s > 0:
            self._stopping_s.append(idle_s)
        if gained > 0 and end.stepping_s > 0 and len(lease.bundle.jobs) == 1:
            key = (lease.job, lease.bundle.gpus, lease.bundle.worker_type)
            steps, time_s = self._measured.get(key, (0.0, 0.0))
            self._measured[key] = (steps + gained, time_s + end.stepping_s)

    def _jobs(self, table: Throughputs, kinds: Iterable[str]) -> list[TraceJob]:
        there, jobs = list(kinds), []
        for at_s, name, spec in self._submitted:
            job_type = _own_type(name, spec)
            steps = spec.steps
            if steps is None or (name in self._ended and self._done.get(name, 0.0) < steps):
                steps = self._done.get(name) or None
            if steps is None:
                self.notes["jobs left out: nobody knows how much they had to do"] += 1
                continue
            widths = range(spec.narrowest, spec.widest + 1)
            if not any(table.rate(job_type, w, kind) > 0 for w in widths for kind in there):
                self.notes["jobs left out: their rates are not known"] += 1
                continue
            if spec.after:
                self.notes["jobs that waited for others come as if they had not"] += 1
            excluded = set(spec.excluded_worker_types)
            allowed = spec.worker_types or (tuple(k for k in there if k not in excluded) if excluded else ())
            jobs.append(
                TraceJob(
                    id=name,
                    arrival_s=at_s,
                    job_type=job_type,
                    gpus=spec.gpus,
                    steps=steps,
                    weight=spec.weight,
                    tenant=spec.tenant,
                    deadline_s=spec.deadline_s or None,
                    gpus_min=spec.gpus_min,
                    gpus_max=spec.gpus_max,
                    worker_types=allowed,
                    name=spec.name,
                    user=spec.user,
                )
            )
        return jobs

    def _rates(self, fact: f.RatesGiven) -> None:
        self._solo.update({row[:3]: row[3] for row in fact.solo})
        self._spread.update({row[:3]: row[3] for row in fact.unconsolidated})
        for kind, a, b, gpus, rate_a, rate_b in fact.pairs:
            self._pairs[kind, a, gpus, b, gpus] = (rate_a, rate_b)
            self._pairs[kind, b, gpus, a, gpus] = (rate_b, rate_a)

    def _table(self) -> Throughputs:
        """Told rates, and measured ones of job types that nobody was told of."""
        solo, told = dict(self._solo), {key[0] for key in self._solo}
        by_job: dict[str, list[tuple[Key, tuple[float, float]]]] = {}
        for key, seen in self._measured.items():
            by_job.setdefault(key[0], []).append((key, seen))
        measured: Measured = {}
        for _, name, spec in self._submitted:
            job_type = _own_type(name, spec)
            for kind, rate in spec.rates.items():
                solo[job_type, spec.gpus, kind] = rate
            if job_type in told or spec.rates:
                continue
            for (_, gpus, kind), (steps, time_s) in by_job.get(name, ()):
                before = measured.get((job_type, gpus, kind), (0.0, 0.0))
                measured[job_type, gpus, kind] = (before[0] + steps, before[1] + time_s)
        solo |= {key: steps / time_s for key, (steps, time_s) in measured.items()}
        return Throughputs(solo, self._spread, self._pairs, source="the journal")

    # nodes

    def _node(self, at_s: float, fact: f.NodeJoined | f.NodeMoved | f.NodeRemoved | f.GpusBroken) -> None:
        match fact:
            case f.NodeJoined(spec=spec):
                if spec.name not in self._nodes or spec.name in self._away:
                    self._events.append((at_s, _join(spec)))
                self._nodes[spec.name] = spec
                self._away.discard(spec.name)
            case f.NodeMoved(node=node, state=NodeState.SILENT | NodeState.LOST):
                if node not in self._away:
                    self._away.add(node)
                    self._events.append((at_s, _crash(node)))
            case f.NodeMoved(node=node, state=state):
                action = "drain" if state == NodeState.DRAINING else "resume"
                self._events.append((at_s, _told(NodeCommand(node=node, action=action))))  # type: ignore[arg-type]
            case f.NodeRemoved(node=node):
                self._away.add(node)
                self._events.append((at_s, _told(NodeCommand(node=node, action="remove"))))
            case f.GpusBroken():
                self.notes["GPUs that broke stay whole"] += len(fact.gpus)


def _own_type(name: str, spec: JobSpec) -> str:
    """The job's type; one of its own where its rates are."""
    if spec.rates:
        return f"{spec.job_type or 'job'} #{name}"
    return spec.job_type or f"job #{name}"


def _join(spec: NodeSpec) -> Callable[[Machines], Event]:
    return lambda machines: lambda now_s: machines.join(now_s, spec)


def _crash(node: str) -> Callable[[Machines], Event]:
    return lambda machines: lambda now_s: machines.crash(now_s, node)


def _told(message: Message) -> Callable[[Machines], Event]:
    return lambda machines: message
