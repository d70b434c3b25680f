"""`apply`: the only place where the state changes. Running and recovery both come through here.

Nothing is decided here and nothing is refused: a fact has happened. What a fact implies without any choice
(a closed lease frees its GPUs, and whoever waited for exactly these has them now) happens here too, so that
the journal need not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.core import facts as f
from scheduler.core.messages import Exit, Progress
from scheduler.core.state import Asked, Request, Round, SchedulerState
from scheduler.model.cluster import Node, NodeState
from scheduler.model.jobs import Job, JobState, Move, after
from scheduler.model.lease import Bundle, Holding, Lease, Phase, nodes_of
from scheduler.model.shares import ShareTable
from scheduler.model.throughput import RateKey


def apply(state: SchedulerState, now_s: float, fact: f.Fact) -> None:
    """Let a fact have happened."""
    state.now_s = now_s
    _APPLY[type(fact)](state, now_s, fact)


def _configured(state: SchedulerState, now_s: float, fact: f.Configured) -> None:
    state.settings = fact.settings
    state.stale = True
    state.cluster_version += 1


def _epoch_started(state: SchedulerState, now_s: float, fact: f.EpochStarted) -> None:
    state.epoch = fact.epoch


def _rates_given(state: SchedulerState, now_s: float, fact: f.RatesGiven) -> None:
    state.rates.put(fact.solo)
    state.rates.put(fact.unconsolidated, spread=True)
    state.rates.put_pairs(fact.pairs)
    state.stale = True


def _prices_set(state: SchedulerState, now_s: float, fact: f.PricesSet) -> None:
    state.prices = {**state.prices, **fact.price_per_gpu_hour}
    state.stale = True


# Jobs


def _job_submitted(state: SchedulerState, now_s: float, fact: f.JobSubmitted) -> None:
    parent, _, index = fact.job.partition("_")
    job = Job(
        id=fact.job,
        spec=fact.spec,
        submitted_s=now_s,
        order=len(state.jobs),
        blocked_by=set(fact.blocked_by),
    )
    state.jobs[job.id] = state.active[job.id] = job
    if job.spec.is_limited:
        state.watched[job.id] = job
    state.next_job = max(state.next_job, int(parent) + 1)
    if index:
        state.arrays.setdefault(parent, []).append(job.id)
    for other in fact.blocked_by:
        state.dependents.setdefault(other, []).append(job.id)
    if fact.key:
        state.requests.setdefault(fact.key, Request(fact.digest, [])).jobs.append(job.id)
    state.stale = True


def _job_moved(state: SchedulerState, now_s: float, fact: f.JobMoved) -> None:
    _move(state, now_s, state.jobs[fact.job], fact.move, fact.why)


def _move(state: SchedulerState, now_s: float, job: Job, move: Move, why: str) -> None:
    job.state = after(job.state, move)
    job.why = why
    if move not in _TURNS:
        state.stale = True
    if job.is_terminal:
        job.ended_s = now_s
        del state.active[job.id]
        state.watched.pop(job.id, None)
        _open_gates(state, job)


_TURNS = frozenset(
    {Move.START, Move.PREEMPT}
)  # taking turns is what an allocation is for; it needs no new one


def _open_gates(state: SchedulerState, job: Job) -> None:
    """Those who waited for this job's end go on; those who waited for its success only if it succeeded."""
    for name in state.dependents.pop(job.id, ()):
        other = state.jobs[name]
        if job.state == JobState.COMPLETED or _content_with_end(other, job.id):
            other.blocked_by.discard(job.id)
            state.stale = True


def _content_with_end(job: Job, other: str) -> bool:
    parent = other.partition("_")[0]
    return any(d.when == "ended" and d.job in (other, parent) for d in job.spec.after)


# Nodes


def _node_joined(state: SchedulerState, now_s: float, fact: f.NodeJoined) -> None:
    node = state.nodes.get(fact.spec.name)
    if node is None:
        state.nodes[fact.spec.name] = Node(spec=fact.spec, since_s=now_s)
    else:
        node.spec, node.why, node.since_s = fact.spec, "", now_s
        node.state = NodeState.DRAINING if node.drained else NodeState.UP
        node.broken.clear()
    _cluster_changed(state)


def _node_moved(state: SchedulerState, now_s: float, fact: f.NodeMoved) -> None:
    node = state.nodes[fact.node]
    if fact.state in (NodeState.DRAINING, NodeState.UP):
        node.drained = fact.state == NodeState.DRAINING
    node.state, node.why, node.since_s = fact.state, fact.why, now_s
    _cluster_changed(state)


def _node_removed(state: SchedulerState, now_s: float, fact: f.NodeRemoved) -> None:
    del state.nodes[fact.node]
    _cluster_changed(state)


def _gpus_broken(state: SchedulerState, now_s: float, fact: f.GpusBroken) -> None:
    state.nodes[fact.node].broken.update(fact.gpus)
    _cluster_changed(state)


def _cluster_changed(state: SchedulerState) -> None:
    state.stale = True
    state.reindex_nodes()


# Allocations


def _allocation_asked(state: SchedulerState, now_s: float, fact: f.AllocationAsked) -> None:
    state.asked = Asked(fact.number, now_s, answered=False)
    state.stale = False


def _allocation_adopted(state: SchedulerState, now_s: float, fact: f.AllocationAdopted) -> None:
    state.asked.answered = True
    state.allocation = fact
    shares, old = fact.shares, state.shares
    jobs, types = shares.jobs, shares.worker_types
    labels = shares.label or ("",) * len(shares.first)
    table = ShareTable(
        [
            Bundle(
                (jobs[a],) if b < 0 else (jobs[a], jobs[b]) if jobs[a] <= jobs[b] else (jobs[b], jobs[a]),
                types[kind],
                gpus,
                label,
            )
            for a, b, kind, gpus, label in zip(
                shares.first, shares.second, shares.worker_type, shares.gpus, labels, strict=True
            )
        ]
    )
    table.share[:] = shares.share
    table.backfill[shares.no_backfill] = False
    table.carry_over(old)
    state.shares = table
    state.isolated_rate = dict(zip(jobs, shares.isolated_rate, strict=False))


def _allocation_failed(state: SchedulerState, now_s: float, fact: f.AllocationFailed) -> None:
    state.asked.answered = True
    state.stale = True  # ask again


# Rounds and leases


def _round_planned(state: SchedulerState, now_s: float, fact: f.RoundPlanned) -> None:
    settings, table = state.settings, state.shares
    old_end_s = state.round.ends_s
    for name in fact.ended:
        holding = state.leases[name]
        if holding.phase == Phase.WAITING:
            _forget(state, now_s, holding)
        else:
            # planned ahead, it runs to the end of its round; at the boundary, that is now
            _stop(state, holding, max(now_s, min(old_end_s, fact.starts_s)), "its turn is over")
    state.round = Round(fact.number, fact.starts_s, fact.ends_s, fact.reserved)
    _rebundle(state, fact.rebundled)
    for lease in fact.granted:
        _grant(state, now_s, lease)
    table.pass_round(settings.round_s, 0.5 ** (1.0 / settings.half_life_rounds))
    placed = {h.bundle for h in state.leases.values() if h.phase != Phase.STOPPING}
    table.extend(sorted(placed - table.row_of.keys()))
    table.receive(placed, settings.round_s)
    table.note_skipped(fact.skipped)


def _gpus_filled(state: SchedulerState, now_s: float, fact: f.GpusFilled) -> None:
    _rebundle(state, fact.rebundled)
    for lease in fact.granted:
        _grant(state, now_s, lease)
    placed = {lease.bundle for lease in fact.granted}
    state.shares.extend(sorted(placed - state.shares.row_of.keys()))
    state.shares.receive(placed, max(state.round.ends_s - now_s, 0.0))


def _rebundle(state: SchedulerState, changes: tuple[tuple[str, Bundle], ...]) -> None:
    for name, bundle in changes:
        holding = state.leases[name]
        holding.bundle = bundle
        state.touch(holding)


def _grant(state: SchedulerState, now_s: float, lease: Lease) -> None:
    job = state.jobs[lease.job]
    waits_for = {
        other
        for gpu in lease.gpus
        for other in state.holders.get(gpu, ())
        if state.leases[other].phase == Phase.STOPPING
    }
    if job.leaving is not None:
        waits_for.add(job.leaving)
    phase = Phase.WAITING if waits_for else Phase.SENT
    holding = Holding(lease=lease, phase=phase, granted_s=now_s, bundle=lease.bundle, waits_for=waits_for)
    holding.reported_s, holding.steps = now_s, job.steps_done
    state.leases[lease.id] = holding
    state.next_lease = max(state.next_lease, int(lease.id) + 1)
    job.lease, job.attempt = lease.id, lease.attempt
    if job.state != JobState.RUNNING:
        _move(state, now_s, job, Move.START, "")
    if waits_for:
        state.claim(holding)
    else:
        state.hold(holding)
        state.touch(holding)


def _stop(state: SchedulerState, holding: Holding, ends_s: float, why: str) -> None:
    """The lease will end; its GPUs stay taken until the exit is confirmed, or it has lapsed."""
    job = state.jobs[holding.lease.job]
    holding.phase, holding.why = Phase.STOPPING, why
    holding.ends_s = ends_s
    holding.stop_by_s = max(ends_s, state.round.ends_s) + state.settings.lease_margin_s
    job.lease, job.leaving = None, holding.lease.id
    state.touch(holding)


def _forget(state: SchedulerState, now_s: float, holding: Holding) -> None:
    """A lease that never went out: nothing ran, nothing has to stop."""
    job = state.jobs[holding.lease.job]
    state.let_go(holding)
    del state.leases[holding.lease.id]
    for other in holding.waits_for:
        if other in state.blocks:
            state.blocks[other].remove(holding.lease.id)
    job.lease = None
    if job.state == JobState.RUNNING and job.leaving is None:
        _move(state, now_s, job, Move.PREEMPT, "its turn passed before its GPUs were free")


def _lease_recalled(state: SchedulerState, now_s: float, fact: f.LeaseRecalled) -> None:
    holding = state.leases[fact.lease]
    if holding.phase == Phase.WAITING:
        _forget(state, now_s, holding)
    else:
        _stop(state, holding, now_s, fact.why)


def _leases_resumed(state: SchedulerState, now_s: float, fact: f.LeasesResumed) -> None:
    for name in fact.leases:
        holding = state.leases[name]
        holding.phase, holding.ends_s, holding.stop_by_s, holding.why = Phase.RUNNING, None, None, ""
        job = state.jobs[holding.lease.job]
        job.lease, job.leaving = name, None
        state.touch(holding)


def _leases_started(state: SchedulerState, now_s: float, fact: f.LeasesStarted) -> None:
    for name in fact.leases:
        holding = state.leases[name]
        if holding.phase == Phase.SENT:
            holding.phase = Phase.RUNNING
        holding.started_s = holding.reported_s = now_s
        job = state.jobs[holding.lease.job]
        if job.started_s is None:
            job.started_s = now_s


def _progress_made(state: SchedulerState, now_s: float, fact: f.ProgressMade) -> None:
    for made in fact.progress:
        _advance(state, now_s, state.leases[made.lease], made)


def _advance(state: SchedulerState, now_s: float, holding: Holding, made: Progress | Exit) -> None:
    """Take in how far a job is, and what that says about rates."""
    job = state.jobs[holding.lease.job]
    gained = made.steps - job.steps_done
    stepping_s = made.stepping_s - holding.ran_s
    if state.settings.learn_rates and gained > 0 and stepping_s > 0 and job.spec.reports_steps:
        key = rate_key(state, holding)
        if key is not None and state.rates.observe(key, gained, stepping_s, state.settings.trust_after_s):
            state.stale = True
    if gained > 0:
        isolated = state.isolated_rate.get(job.id, 0.0)
        if isolated > 0:
            job.isolated_s += gained / isolated
    job.steps_done, job.steps_saved = made.steps, made.saved
    holding.steps, holding.reported_s, holding.ran_s = made.steps, now_s, made.stepping_s


def rate_key(state: SchedulerState, holding: Holding) -> RateKey | None:
    """What a measurement under this lease is a measurement of; None where that cannot be told."""
    bundle, job = holding.bundle, state.jobs[holding.lease.job]
    if not job.spec.job_type:
        return None
    partner = ""
    if len(bundle.jobs) > 1:
        partner = state.jobs[bundle.jobs[bundle.jobs[0] == job.id]].spec.job_type
    spread = False
    if not state.settings.consolidated_rates and bundle.gpus > 1:
        node = state.nodes.get(nodes_of(holding.lease.gpus)[0])
        spread = node is not None and len(nodes_of(holding.lease.gpus)) > -(-bundle.gpus // node.spec.gpus)
    return RateKey(job.spec.job_type, bundle.gpus, bundle.worker_type, partner, spread)


def _ranks_exited(state: SchedulerState, now_s: float, fact: f.RanksExited) -> None:
    state.leases[fact.exit.lease].exited.add(fact.node)


def _lease_closed(state: SchedulerState, now_s: float, fact: f.LeaseClosed) -> None:
    end = fact.exit
    holding = state.leases[end.lease]
    job = state.jobs[holding.lease.job]
    _advance(state, now_s, holding, end)
    if end.outcome not in _ORDERLY:
        job.steps_done = end.saved
    job.run_s += end.ran_s
    price = state.prices.get(holding.bundle.worker_type, 0.0)
    job.cost_usd += price * end.ran_s / 3600.0 * holding.bundle.gpus / len(holding.bundle.jobs)
    state.let_go(holding)
    state.touch(holding)
    if len(holding.bundle.jobs) > 1:
        _part(state, holding)
    del state.leases[end.lease]
    if job.leaving == end.lease:
        job.leaving = None
    else:
        job.lease = None
    if not job.is_terminal:
        _after_exit(state, now_s, job, end)
    for name in state.blocks.pop(end.lease, ()):
        _unblock(state, now_s, state.leases[name], end.lease)


def _after_exit(state: SchedulerState, now_s: float, job: Job, end: Exit) -> None:
    """What an exit means for its job. Whether a failed attempt is tried again is decided elsewhere."""
    if end.outcome in ("finished", "failed") and job.lease is not None:
        _forget(state, now_s, state.leases[job.lease])  # it was to go on elsewhere; there is no need now
    if end.outcome == "finished":
        _move(state, now_s, job, Move.COMPLETE, "")
    elif end.outcome == "failed":
        job.failures += 1
    else:
        job.node_failures += end.outcome == "node_failed"
        job.preemptions += end.outcome == "yielded"
        if job.lease is None and job.state == JobState.RUNNING:
            _move(state, now_s, job, Move.PREEMPT, _ORDERLY.get(end.outcome, "its node is gone"))


_ORDERLY = {"finished": "", "yielded": "its turn is over"}  # exits after which everything done is saved


def _part(state: SchedulerState, holding: Holding) -> None:
    """A packed job has its GPUs to itself when its partner is gone."""
    for name in state.holders.get(holding.lease.gpus[0], ()):
        other = state.leases[name]
        if other.bundle == holding.bundle:
            other.bundle = other.bundle._replace(jobs=(other.lease.job,))


def _unblock(state: SchedulerState, now_s: float, holding: Holding, closed: str) -> None:
    holding.waits_for.discard(closed)
    if not holding.waits_for:
        state.let_go(holding)
        holding.phase = Phase.SENT
        holding.reported_s, holding.steps = now_s, state.jobs[holding.lease.job].steps_done
        state.hold(holding)
        state.touch(holding)


_APPLY: dict[type[f.Fact], Callable[[SchedulerState, float, Any], None]] = {
    f.Configured: _configured,
    f.EpochStarted: _epoch_started,
    f.RatesGiven: _rates_given,
    f.PricesSet: _prices_set,
    f.JobSubmitted: _job_submitted,
    f.JobMoved: _job_moved,
    f.NodeJoined: _node_joined,
    f.NodeMoved: _node_moved,
    f.NodeRemoved: _node_removed,
    f.GpusBroken: _gpus_broken,
    f.AllocationAsked: _allocation_asked,
    f.AllocationAdopted: _allocation_adopted,
    f.AllocationFailed: _allocation_failed,
    f.RoundPlanned: _round_planned,
    f.GpusFilled: _gpus_filled,
    f.LeaseRecalled: _lease_recalled,
    f.LeasesResumed: _leases_resumed,
    f.LeasesStarted: _leases_started,
    f.ProgressMade: _progress_made,
    f.RanksExited: _ranks_exited,
    f.LeaseClosed: _lease_closed,
}
