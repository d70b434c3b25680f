"""The ledger: it turns facts into the rows of the history. Pure: no clock, no file, no thread.

A ledger begins at a state, and then takes in every fact that follows. Its rows depend only on the facts, so that those
made while the scheduler runs equal those made again from the journal. At any moment a ledger equals a new one that
begins at the present state; so it can begin at any snapshot.

Facts that do not fit, such as the end of an unknown lease after damage to the journal, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.core import facts as f
from scheduler.core.apply_leases import TURN_PASSED, why_ended
from scheduler.core.messages import Exit, Shares
from scheduler.core.planning.job_leases import Counted, JobLeases
from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.core.state import SchedulerState
from scheduler.live.observe.capacity import Capacity, NodeFact
from scheduler.live.observe.division import divide
from scheduler.live.observe.open_lease import KnownJob, OpenLease, turn_of
from scheduler.live.observe.past_rows import (
    DROPPED,
    OUTCOME_NUMBERS,
    PastAllocation,
    PastLease,
    PastRound,
    Row,
    SharesByTenant,
    ms,
    packed_gpus,
    packed_shares,
)
from scheduler.model.gpu_quotas import GpuQuotas
from scheduler.model.job_quotas import JobQuotas
from scheduler.model.jobs import Move
from scheduler.model.lease import exit_words
from scheduler.model.settings import Settings

# A row's place: the number of its record, shifted by these bits, plus its position among the rows of that record.
PLACE_BITS = 20
# The longest reason that is kept.
WHY_CHARS_MAX = 256


class Ledger:
    """Facts in, rows out."""

    def __init__(self, state: SchedulerState) -> None:
        """Begin at this state, which is only read now."""
        self.leases: dict[str, OpenLease] = {}
        self._stopping: dict[str, OpenLease] = {}
        # By lease: the leases that wait for its end.
        self._blocks: dict[str, list[OpenLease]] = {}
        # How many leases wait.
        self._waiting = 0
        self._jobs = {job.id: KnownJob.of(job) for job in state.jobs.values()}
        self._enter_quotas(state.settings)
        self._capacity = Capacity(state)
        for holding in state.leases.values():
            self._enter(OpenLease.of(holding))
        # The GPUs of the nodes at this moment.
        self.nodes = list(self._capacity.settle(state.now_s, 0))
        # The last question to the solver, and the allocation in force.
        self._asked, self._asked_s = state.asked.number, state.asked.at_s
        self._allocation = 0 if state.allocation is None else state.allocation.number
        # Of the record that is being taken in: its time, the place of its next row, and its rows.
        self._now_s, self._place = 0.0, 0
        self._rows: list[Row] = []

    def take(self, seq: int, now_s: float, facts: Sequence[f.Fact]) -> list[Row]:
        """Take in record `seq` of the journal, and return its rows."""
        self._now_s, self._place, self._rows = now_s, seq << PLACE_BITS, []
        leases = self.leases
        for fact in facts:
            # Nine of ten facts are of this type.
            if type(fact) is f.ProgressMade:
                for report in fact.progress:
                    entry = leases.get(report.lease)
                    if entry is not None:
                        entry.steps, entry.stepping_s, entry.reported_s = (
                            report.steps,
                            report.stepping_s,
                            now_s,
                        )
                continue
            handle = _HANDLERS.get(type(fact))
            if handle is not None:
                handle(self, fact)
        if self._capacity.changed:
            self._rows += self._capacity.settle(now_s, self._place)
        return self._rows

    def _enter(self, entry: OpenLease) -> None:
        lease = entry.lease
        self.leases[lease.id] = entry
        for name in entry.waits_for:
            self._blocks.setdefault(name, []).append(entry)
        if entry.waits_for:
            self._waiting += 1
        else:
            self._capacity.hold(lease)
        if entry.is_stopping:
            self._stopping[lease.id] = entry

    def _leave(self, entry: OpenLease) -> None:
        lease = entry.lease
        del self.leases[lease.id]
        self._stopping.pop(lease.id, None)
        if entry.waits_for:
            self._waiting -= 1
        else:
            self._capacity.let_go(lease)

    def _job(self, name: str) -> KnownJob:
        return self._jobs.get(name) or KnownJob()

    # Facts about leases.

    def _round_planned(self, fact: f.RoundPlanned) -> None:
        for name in fact.ended:
            entry = self.leases.get(name)
            if entry is not None:
                self._stop(entry, fact.spent.get(name) or why_ended(self._capacity.cluster, entry.lease))
        row = PastRound(
            number=fact.number,
            planned_ms=ms(self._now_s),
            starts_ms=ms(fact.starts_s),
            ends_ms=ms(fact.ends_s),
            granted=len(fact.granted),
            # A lease that waits is never stopping.
            renewed=len(self.leases) - len(self._stopping) - self._waiting,
            ended=len(fact.ended),
            skipped=len(fact.skipped),
            allocation=self._allocation,
        )
        self._rows.append(row)
        self._granted(fact)

    def _granted(self, fact: f.RoundPlanned | f.GpusFilled) -> None:
        if not fact.granted:
            return
        # The stopping leases by GPU and by job. The name of a GPU has a colon, and the id of a job has none.
        stopping: dict[str, list[str]] = {}
        for name, entry in self._stopping.items():
            for used in (entry.lease.job, *entry.lease.gpus):
                stopping.setdefault(used, []).append(name)
        counted = self._counted()
        for lease in fact.granted:
            waits_for: set[str] = set()
            if stopping:
                waits_for.update(*[stopping.get(used, ()) for used in (lease.job, *lease.gpus)])
            entry = OpenLease(lease, self._now_s, None, waits_for)
            job = self._job(lease.job)
            for leases in counted:
                waits_for |= leases.to_end_before(job, lease)
                leases.add(job, entry.holding())
            if not waits_for:
                self._note_sent(entry)
            self._enter(entry)

    def _enter_quotas(self, settings: Settings) -> None:
        self._gpu_quotas = GpuQuotas(settings)
        self._running_quotas = JobQuotas(settings, "jobs_running")

    def _counted(self) -> Sequence[Counted]:
        """Return the leases of all quotas; empty if no lease is ending, so that no other has to wait for a quota."""
        counted: list[Counted] = []
        if self._stopping and self._gpu_quotas:
            counted.append(QuotaLeases(self._gpu_quotas))
        if self._stopping and self._running_quotas:
            counted.append(JobLeases(self._running_quotas))
        for leases in counted:
            for entry in self.leases.values():
                leases.add(self._job(entry.lease.job), entry.holding())
        return counted

    def _note_sent(self, entry: OpenLease) -> None:
        entry.sent_s = entry.reported_s = self._now_s
        entry.sent_steps = entry.steps = self._job(entry.lease.job).steps

    def _recalled(self, fact: f.LeaseRecalled) -> None:
        entry = self.leases.get(fact.lease)
        if entry is None:
            return
        if fact.untold and not entry.waits_for:
            self._drop(entry, fact.why)
        else:
            self._stop(entry, fact.why)

    def _stop(self, entry: OpenLease, why: str) -> None:
        """Note that a lease has to stop. A lease that still waits ends here."""
        if entry.waits_for:
            self._drop(entry, TURN_PASSED)
            return
        entry.why = why
        entry.is_stopping = True
        self._stopping[entry.lease.id] = entry

    def _resumed(self, fact: f.LeasesResumed) -> None:
        for name in fact.leases:
            entry = self.leases.get(name)
            if entry is not None and entry.is_stopping:
                entry.is_stopping, entry.why = False, ""
                del self._stopping[name]

    def _started(self, fact: f.LeasesStarted) -> None:
        for name in fact.leases:
            entry = self.leases.get(name)
            if entry is not None:
                entry.started_s = entry.reported_s = self._now_s

    def _idled(self, fact: f.GpusIdled) -> None:
        entry = self.leases.get(fact.lease)
        if entry is None:
            return
        if fact.since_s is not None:
            entry.idle_since[fact.node] = fact.since_s
        else:
            entry.was_idle_s = entry.idle_s(self._now_s)
            entry.idle_since.pop(fact.node, None)

    def _closed(self, fact: f.LeaseClosed) -> None:
        end = fact.exit
        entry = self.leases.get(end.lease)
        if entry is None:
            return
        self._add(entry, end.outcome, _why_closed(entry, end), end)
        self._leave(entry)
        blocked = self._blocks.pop(end.lease, ())
        if end.outcome in ("finished", "failed"):
            # The job does not need the lease that it was granted for its next turn.
            for other in blocked:
                if other.lease.job == entry.lease.job and other.lease.id in self.leases:
                    self._drop(other, TURN_PASSED)
        for other in blocked:
            if other.lease.id not in self.leases:
                continue
            other.waits_for.discard(end.lease)
            if not other.waits_for:
                self._waiting -= 1
                self._note_sent(other)
                self._capacity.hold(other.lease)

    def _drop(self, entry: OpenLease, why: str) -> None:
        """End a lease that was never sent to its nodes."""
        self._add(entry, DROPPED, why)
        self._leave(entry)

    def _add(self, entry: OpenLease, outcome: str, why: str, end: Exit | None = None) -> None:
        """Add the row of a lease that ends now."""
        lease, bundle, job = entry.lease, entry.lease.bundle, self._job(entry.lease.job)
        ran_ms = stepping_ms = code = 0
        steps: float | None = None
        saved: float | None = None
        useful_ms = lost_ms = idle_ms = 0
        if end is not None:
            ran_ms, stepping_ms, code = ms(end.ran_s), ms(end.stepping_s), end.code
            steps, saved = end.steps, end.saved
            job.steps = steps if outcome in ("finished", "yielded") else saved
            useful_ms, lost_ms, idle_ms = map(ms, divide(turn_of(entry, job, end, self._now_s)))
        ended_ms = ms(self._now_s)
        held_ms = 0 if entry.waits_for else ended_ms - ms(entry.sent_s)
        # By position, which takes half the time of names.
        row = PastLease(
            self._place,
            int(lease.id),
            lease.job,
            lease.attempt,
            lease.round_number,
            bundle.worker_type,
            bundle.gpus,
            packed_gpus(lease.gpus),
            bundle.label,
            next((job for job in bundle.jobs if job != lease.job), "") if len(bundle.jobs) > 1 else "",
            job.user,
            job.tenant,
            job.job_type,
            ms(entry.granted_s),
            None if entry.started_s is None else ms(entry.started_s),
            ended_ms,
            ran_ms,
            stepping_ms,
            steps,
            saved,
            OUTCOME_NUMBERS[outcome],
            code,
            why[:WHY_CHARS_MAX],
            held_ms,
            # Each is rounded by itself.
            min(useful_ms, held_ms),
            max(min(lost_ms, held_ms - useful_ms), 0),
            max(min(idle_ms, held_ms - useful_ms - lost_ms), 0),
            self._shared_ms(entry) if held_ms else 0,
        )
        self._rows.append(row)
        self._place += 1

    def _shared_ms(self, entry: OpenLease) -> int:
        """Return how long a lease that ends now, and one that does not, have held the same GPUs."""
        partners = self._capacity.partners(entry.lease)
        if not partners:
            return 0
        return ms(self._now_s) - ms(max(entry.sent_s, self.leases[partners[0]].sent_s))

    # Facts about allocations.

    def _asked_solver(self, fact: f.AllocationAsked) -> None:
        self._asked, self._asked_s = fact.number, self._now_s

    def _adopted(self, fact: f.AllocationAdopted) -> None:
        self._allocation = fact.number
        solve_ms = ms(self._now_s - self._asked_s) if fact.number == self._asked else None
        tenants = [self._job(job).tenant for job in fact.shares.jobs]
        row = PastAllocation(
            number=fact.number,
            adopted_ms=ms(self._now_s),
            solve_ms=solve_ms,
            policy=fact.policy,
            failed=fact.failed[:WHY_CHARS_MAX],
            optimal=fact.optimal,
            shares=packed_shares(gpus_by_tenant(fact.shares, tenants)),
        )
        self._rows.append(row)

    # Facts about settings, jobs and nodes.

    def _configured(self, fact: f.Configured) -> None:
        self._enter_quotas(fact.settings)

    def _submitted(self, fact: f.JobSubmitted) -> None:
        spec = fact.spec
        self._jobs[fact.job] = KnownJob(spec.user, spec.tenant, spec.job_type, spec.reports_steps)

    def _updated(self, fact: f.JobUpdated) -> None:
        tenant = fact.changes.tenant
        if isinstance(tenant, str):
            self._job(fact.job).tenant = tenant

    def _moved(self, fact: f.JobMoved) -> None:
        if fact.move is Move.CANCEL:
            self._job(fact.job).is_cancelled = True

    def _forgotten(self, fact: f.JobsForgotten) -> None:
        for job in fact.jobs:
            self._jobs.pop(job, None)

    def _node_changed(self, fact: NodeFact) -> None:
        self._capacity.change(self._now_s, fact)


def gpus_by_tenant(shares: Shares, tenants: Sequence[str]) -> SharesByTenant:
    """Return how many GPUs each tenant gets of each worker type. `tenants`: those of the jobs of the shares."""
    sums: defaultdict[tuple[str, int], float] = defaultdict(float)
    columns = zip(shares.share, shares.first, shares.second, shares.worker_type, shares.gpus, strict=True)
    for share, first, second, worker_type, gpus in columns:
        if share > 0:
            sums[tenants[first], worker_type] += share * gpus
            if second >= 0:
                sums[tenants[second], worker_type] += share * gpus
    due = SharesByTenant()
    for (tenant, kind), gpus_due in sums.items():
        due.setdefault(tenant, {})[shares.worker_types[kind]] = gpus_due
    return due


_HANDLERS: dict[type[f.Fact], Callable[[Ledger, Any], None]] = {
    f.Configured: Ledger._configured,
    f.RoundPlanned: Ledger._round_planned,
    f.GpusFilled: Ledger._granted,
    f.LeaseRecalled: Ledger._recalled,
    f.LeasesResumed: Ledger._resumed,
    f.LeasesStarted: Ledger._started,
    f.GpusIdled: Ledger._idled,
    f.LeaseClosed: Ledger._closed,
    f.AllocationAsked: Ledger._asked_solver,
    f.AllocationAdopted: Ledger._adopted,
    f.JobSubmitted: Ledger._submitted,
    f.JobUpdated: Ledger._updated,
    f.JobMoved: Ledger._moved,
    f.JobsForgotten: Ledger._forgotten,
    f.NodeJoined: Ledger._node_changed,
    f.NodeMoved: Ledger._node_changed,
    f.NodeRemoved: Ledger._node_changed,
    f.GpusBroken: Ledger._node_changed,
    f.GpusWithheld: Ledger._node_changed,
}


def _why_closed(entry: OpenLease, end: Exit) -> str:
    """Return why a lease ended, without quoting the job's output, which not all users may read."""
    if end.outcome == "finished":
        return ""
    if end.outcome == "failed":
        words = exit_words(end.code)
        return f"{entry.why}; it {words}" if entry.why else f"it {words}"
    return entry.why or ("its node failed" if end.outcome == "node_failed" else "")
