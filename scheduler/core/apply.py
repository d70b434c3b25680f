"""`apply`: the only function that changes the state, both while the scheduler runs and during recovery.

It decides nothing and refuses nothing, because a fact has happened already. Direct consequences of a fact are applied
here as well, so that the journal need not repeat them: a closed lease frees its GPUs, and a lease that waits for
these GPUs gets them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from scheduler.core import apply_jobs as jobs
from scheduler.core import apply_leases as leases
from scheduler.core import facts as f
from scheduler.core.accounts import apply_measured as measured
from scheduler.core.accounts import budgets
from scheduler.core.accounts.credit import charge_all
from scheduler.core.snapshot import Asked
from scheduler.core.state import SchedulerState
from scheduler.model.budgets import Account, AccountId, period_at
from scheduler.model.cluster import Node, NodeState
from scheduler.model.shares import ShareTable


def apply(state: SchedulerState, now_s: float, fact: f.Fact) -> None:
    """Apply a fact to the state."""
    state.now_s = now_s
    _APPLY[type(fact)](state, now_s, fact)


def _configured(state: SchedulerState, now_s: float, fact: f.Configured) -> None:
    # What has been used so far is charged to the budgets that were in force.
    budgets.settle_all(state, now_s)
    state.settings = fact.settings
    state.enter_quotas()
    state.stale = True
    state.cluster_version += 1


def _epoch_started(state: SchedulerState, now_s: float, fact: f.EpochStarted) -> None:
    state.epoch = fact.epoch
    state.doubtful = False
    for holding in state.leases.values():
        # While no scheduler ran, nothing was recorded. So the next report cannot measure a rate.
        holding.mixed = True


def _records_lost(state: SchedulerState, now_s: float, fact: f.RecordsLost) -> None:
    state.epoch = max(state.epoch, fact.epoch)
    state.next_job = max(state.next_job, fact.next_job)
    state.next_lease = max(state.next_lease, fact.next_lease)
    state.doubtful = True


def _rates_given(state: SchedulerState, now_s: float, fact: f.RatesGiven) -> None:
    state.rates.put(fact.solo)
    state.rates.put(fact.unconsolidated, spread=True)
    state.rates.put_pairs(fact.pairs)
    state.stale = True


def _prices_set(state: SchedulerState, now_s: float, fact: f.PricesSet) -> None:
    charge_all(state, now_s)
    budgets.settle_all(state, now_s)
    if state.budgets:
        state.enter_quotas()
    state.prices = {**state.prices, **fact.price_per_gpu_hour}
    state.stale = True


# Nodes


def _node_joined(state: SchedulerState, now_s: float, fact: f.NodeJoined) -> None:
    node = state.nodes.get(fact.spec.name)
    if node is None:
        node = Node(spec=fact.spec, since_s=now_s, generation=state.generation_floor)
        state.nodes[fact.spec.name] = node
    else:
        state.drop_node(node)
        # Its agent reports the content of its cache again.
        state.cached.drop_node(fact.spec.name)
        if node.state == NodeState.LOST or fact.spec != node.spec:
            # If the machine is the same, a GpusBroken follows, which names the broken GPUs again.
            node.broken.clear()
            # The agent may still find processes of ended jobs, and reports when none are left.
            node.withheld = {gpu for gpu in node.withheld if gpu < fact.spec.gpus}
        node.spec, node.why, node.since_s = fact.spec, "", now_s
        if node.drained:
            node.state, node.why = NodeState.DRAINING, node.drained_why
        # The node's pause after failed starts is not over yet.
        elif node.back_s is not None and node.back_s > now_s:
            node.state, node.why = NodeState.FAULTY, "several starts in a row failed here"
        else:
            node.state, node.back_s = NodeState.UP, None
    state.add_node(node)
    _cluster_changed(state)


def _node_moved(state: SchedulerState, now_s: float, fact: f.NodeMoved) -> None:
    node = state.nodes[fact.node]
    if fact.state in (NodeState.DRAINING, NodeState.UP):
        node.drained, node.left = fact.state == NodeState.DRAINING, fact.left
        node.drained_why = fact.why if node.drained else ""
        node.back_s = None
    if fact.state == NodeState.FAULTY:
        node.back_s = fact.back_s
        node.pauses += fact.back_s is not None
    if fact.mended:
        node.broken.clear()
        node.withheld.clear()
        node.failed_starts, node.pauses = [], 0
    node.state, node.why, node.since_s = fact.state, fact.why, now_s
    if fact.state == NodeState.LOST:
        state.cached.drop_node(fact.node)
    if fact.state == NodeState.SILENT:
        for holding in state.on_node(fact.node):
            # The silent node reports nothing. So the first report after that cannot measure a rate.
            holding.mixed = True
    _cluster_changed(state)


def _node_removed(state: SchedulerState, now_s: float, fact: f.NodeRemoved) -> None:
    node = state.nodes.pop(fact.node)
    state.drop_node(node)
    state.cached.drop_node(fact.node)
    # If its agent comes back, it refuses sets of leases with lower numbers than the last set it received.
    state.generation_floor = max(state.generation_floor, node.generation)
    _cluster_changed(state)


def _gpus_broken(state: SchedulerState, now_s: float, fact: f.GpusBroken) -> None:
    state.nodes[fact.node].broken.update(fact.gpus)
    _cluster_changed(state)


def _gpus_withheld(state: SchedulerState, now_s: float, fact: f.GpusWithheld) -> None:
    state.nodes[fact.node].withheld = set(fact.gpus)
    _cluster_changed(state)


def _gpus_idled(state: SchedulerState, now_s: float, fact: f.GpusIdled) -> None:
    holding = state.leases[fact.lease]
    if fact.since_s is not None:
        holding.idle_since[fact.node] = fact.since_s
        return
    began_s = holding.idle_began_s
    if began_s is not None:
        holding.was_idle_s += max(now_s - began_s, 0.0)
    holding.idle_since.pop(fact.node, None)


def _data_cached(state: SchedulerState, now_s: float, fact: f.DataCached) -> None:
    state.cached.enter_node(fact.node, fact.data)


def _data_named(state: SchedulerState, now_s: float, fact: f.DataNamed) -> None:
    job = state.jobs[fact.job]
    state.cached.enter_job(job, fact.data, fact.node, measured.gang_of(state, job))


def _cluster_changed(state: SchedulerState) -> None:
    state.stale = True
    state.cluster_version += 1


# Budgets


def _budget_reached(state: SchedulerState, now_s: float, fact: f.BudgetReached) -> None:
    name = AccountId(fact.tenant, fact.user, fact.resource, fact.period)
    starts_s = period_at(fact.period, now_s).starts_s
    account = state.spent.get(name)
    if account is None or account.starts_s != starts_s:
        account = state.spent[name] = Account(*name, starts_s)
    account.reached = fact.percent


# Allocations


def _allocation_asked(state: SchedulerState, now_s: float, fact: f.AllocationAsked) -> None:
    state.asked = Asked(fact.number, now_s, answered=False, beyond=fact.beyond)
    state.stale = False
    state.rates.note_asked()


def _allocation_adopted(state: SchedulerState, now_s: float, fact: f.AllocationAdopted) -> None:
    state.asked.answered = True
    state.allocation = fact
    state.adopted_s = now_s
    for name in [name for name in state.reshaped if state.reshaped[name] < fact.number]:
        del state.reshaped[name]
    shares = fact.shares
    ids, types = shares.jobs, shares.worker_types
    alone = list(zip(ids))
    members = [
        alone[a] if b < 0 else (ids[a], ids[b]) if ids[a] <= ids[b] else (ids[b], ids[a])
        for a, b in zip(shares.first, shares.second, strict=True)
    ]
    worker_types = map(types.__getitem__, shares.worker_type)
    columns = list(zip(members, worker_types, shares.gpus, shares.label or repeat(""), strict=False))
    table = ShareTable.from_allocation(state.shares, columns, types)
    table.share[:] = shares.share
    table.backfill[shares.no_backfill] = False
    state.shares = table
    state.isolated_rate = dict(zip(ids, shares.isolated_rate, strict=False))
    if fact.failed:
        # Ask the solver again.
        state.stale = True


def _allocation_failed(state: SchedulerState, now_s: float, fact: f.AllocationFailed) -> None:
    state.asked.answered = True
    # Ask the solver again.
    state.stale = True


_APPLY: dict[type[f.Fact], Callable[[SchedulerState, float, Any], None]] = {
    f.Configured: _configured,
    f.EpochStarted: _epoch_started,
    f.RecordsLost: _records_lost,
    f.RatesGiven: _rates_given,
    f.PricesSet: _prices_set,
    f.JobSubmitted: jobs.job_submitted,
    f.JobsForgotten: jobs.jobs_forgotten,
    f.JobMoved: jobs.job_moved,
    f.JobUpdated: jobs.job_updated,
    f.PlanStruckOut: jobs.plan_struck_out,
    f.NodeJoined: _node_joined,
    f.NodeMoved: _node_moved,
    f.NodeRemoved: _node_removed,
    f.GpusBroken: _gpus_broken,
    f.GpusWithheld: _gpus_withheld,
    f.GpusIdled: _gpus_idled,
    f.BudgetReached: _budget_reached,
    f.AllocationAsked: _allocation_asked,
    f.AllocationAdopted: _allocation_adopted,
    f.AllocationFailed: _allocation_failed,
    f.RoundPlanned: leases.round_planned,
    f.GpusFilled: leases.gpus_filled,
    f.LeaseRecalled: leases.lease_recalled,
    f.LeasesResumed: leases.leases_resumed,
    f.LeasesStarted: leases.leases_started,
    f.ProgressMade: leases.progress_made,
    f.JobMeasured: measured.job_measured,
    f.DataCached: _data_cached,
    f.DataNamed: _data_named,
    f.CheckpointSaved: jobs.checkpoint_saved,
    f.RanksExited: leases.ranks_exited,
    f.LeaseClosed: leases.lease_closed,
}
