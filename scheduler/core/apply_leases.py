"""Apply facts about rounds and leases to the state.

A granted lease waits for the leases that still hold its GPUs, for the previous lease of its job, and for leases that
are ending if a quota does not admit its GPUs, or its job, beside theirs. It is sent as soon as the last of them is
closed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scheduler.core import facts as f
from scheduler.core import failed_starts
from scheduler.core.accounts import budgets, credit
from scheduler.core.accounts.apply_measured import count_losses, extra_save_of
from scheduler.core.apply_jobs import move
from scheduler.core.messages import Exit, Progress
from scheduler.core.planning.job_leases import Counted, counted_leases
from scheduler.core.snapshot import Round
from scheduler.core.state import SchedulerState
from scheduler.model.bounds import SUM_MAX
from scheduler.model.cluster import NodeState, commanded_by
from scheduler.model.jobs import PREEMPT, RUNS, START, TERMINAL, Job, Move
from scheduler.model.lease import RUNNING, SENT, STOPPING, WAITING, Holding, LeadExit, Lease, nodes_of
from scheduler.model.plans import ran_out_of_memory
from scheduler.model.throughput import RateKey

# Why a lease was dropped before it was sent.
TURN_PASSED = "its turn passed before its GPUs were free"


def round_planned(state: SchedulerState, now_s: float, fact: f.RoundPlanned) -> None:
    """Begin a round: end some leases, grant some, and renew all others."""
    settings, table = state.settings, state.shares
    old_end_s = state.round.ends_s
    budgets.begin_round(state, now_s)
    for name in fact.ended:
        holding = state.leases[name]
        if holding.phase is WAITING:
            _forget(state, now_s, holding)
        else:
            # The lease ends with the old round. If that is over already, it ends now.
            why = fact.spent.get(name) or why_ended(state, holding.lease)
            _stop(state, holding, max(now_s, min(old_end_s, fact.starts_s)), why)
    state.round = Round(fact.number, fact.starts_s, fact.ends_s, fact.reserved)
    for name, bundle in fact.rebundled:
        holding = state.leases[name]
        holding.bundle = bundle
        state.enter_held(holding)
        state.renumber_sets(holding)
    counted = counted_leases(state)
    for lease in fact.granted:
        _grant(state, now_s, lease, counted)
    table.begin_round(settings.round_s, settings.decay)
    credit.credit_round(state)
    table.note_skipped(fact.skipped)


def why_ended(state: SchedulerState, lease: Lease) -> str:
    """Return why a lease is not renewed: its node is drained or out of use, or its turn is over."""
    for name in nodes_of(lease.gpus):
        node = state.nodes.get(name)
        if node is not None and node.state is NodeState.DRAINING:
            user = commanded_by(node.why)
            return f"its node {name} was drained" + (f" by {user}" if user else "")
        if node is not None and node.state is NodeState.FAULTY:
            return f"its node {name} is out of use: {node.why}"
    return _ORDERLY["yielded"]


def gpus_filled(state: SchedulerState, now_s: float, fact: f.GpusFilled) -> None:
    """Grant leases on GPUs that became idle in mid-round."""
    for name, bundle in fact.rebundled:
        holding = state.leases[name]
        credit.change_bundle(state, now_s, holding, bundle)
        state.renumber_sets(holding)
    counted = counted_leases(state)
    for lease in fact.granted:
        holding = _grant(state, now_s, lease, counted)
        if holding.phase is SENT:
            credit.credit(state, now_s, holding, state.round.ends_s)


def _grant(state: SchedulerState, now_s: float, lease: Lease, counted: Iterable[Counted]) -> Holding:
    """Grant a lease. `counted`: the leases of the quotas, to which this one is added."""
    job = state.jobs[lease.job]
    waits_for = set() if job.leaving is None else {job.leaving}
    for gpu in lease.gpus:
        for other in state.holders.get(gpu, ()):
            if state.leases[other].phase is STOPPING:
                waits_for.add(other)
    for leases in counted:
        waits_for |= leases.to_end_before(job.spec, lease)
    holding = Holding(
        lease=lease,
        phase=WAITING,
        granted_s=now_s,
        bundle=lease.bundle,
        waits_for=waits_for,
        reported_s=now_s,
        steps=job.steps_done,
    )
    state.leases[lease.id] = holding
    state.enter_held(holding)
    for leases in counted:
        leases.add(job.spec, holding)
    state.next_lease = max(state.next_lease, int(lease.id) + 1)
    job.lease, job.attempt = lease.id, lease.attempt
    if job.state is not RUNS:
        holding.before = job.state, job.why
        move(state, now_s, job, START, "")
    if waits_for:
        state.claim(holding)
    else:
        _hold(state, now_s, holding)
    return holding


def _hold(state: SchedulerState, now_s: float, holding: Holding) -> None:
    """Give a lease its GPUs, which are free now, as its job is."""
    steps = state.jobs[holding.lease.job].steps_done
    holding.phase, holding.sent_s, holding.sent_steps = SENT, now_s, steps
    holding.reported_s, holding.steps, holding.extra_save_s = now_s, steps, extra_save_of(state, holding)
    budgets.settle(state, now_s, holding.lease.gpus[0])
    holding.paid_s = now_s
    state.hold(holding)
    state.renumber_sets(holding)


def _stop(state: SchedulerState, holding: Holding, ends_s: float, why: str) -> None:
    """Begin to end a lease. Its GPUs stay taken until the exit is confirmed or the lease has lapsed."""
    job = state.jobs[holding.lease.job]
    holding.phase, holding.why = STOPPING, why
    holding.ends_s = ends_s
    holding.stop_by_s = max(ends_s, state.round.ends_s) + state.settings.lease_margin_s + holding.extra_save_s
    job.lease, job.leaving = None, holding.lease.id
    state.held_leases.pop(job.id, None)
    state.renumber_sets(holding)


def _forget(
    state: SchedulerState,
    now_s: float,
    holding: Holding,
    why: str = TURN_PASSED,
) -> None:
    """Drop a lease that was never sent: nothing ran, so nothing has to stop."""
    job = state.jobs[holding.lease.job]
    state.let_go(holding)
    del state.leases[holding.lease.id]
    for other in holding.waits_for:
        if other in state.blocks:
            state.blocks[other].remove(holding.lease.id)
    job.lease = None
    state.held_leases.pop(job.id, None)
    if len(holding.bundle.jobs) > 1:
        _unpair(state, now_s, holding)
    _undo_start(state, now_s, job, holding, why)


def _undo_start(state: SchedulerState, now_s: float, job: Job, holding: Holding, why: str) -> None:
    """Return a job to its former state and reason, because nothing ran under its lease."""
    if job.state is not RUNS:
        return
    if holding.before is not None:
        job.state, job.why = holding.before
    elif job.leaving is None:
        move(state, now_s, job, PREEMPT, why)


def lease_recalled(state: SchedulerState, now_s: float, fact: f.LeaseRecalled) -> None:
    """End a lease before its round ends."""
    holding = state.leases[fact.lease]
    budgets.settle(state, now_s, holding.lease.gpus[0])
    if holding.phase is WAITING:
        _forget(state, now_s, holding)
    elif fact.untold:
        credit.take_back(state, now_s, holding)
        state.renumber_sets(holding)
        _forget(state, now_s, holding, fact.why)
    else:
        # A user's command moves the job before the lease is recalled. So if the job still runs, no user asked for this.
        holding.unasked = state.jobs[holding.lease.job].state is RUNS
        _stop(state, holding, now_s, fact.why)


def leases_resumed(state: SchedulerState, now_s: float, fact: f.LeasesResumed) -> None:
    """Continue leases on a node that was silent."""
    for name in fact.leases:
        holding = state.leases[name]
        budgets.settle(state, now_s, holding.lease.gpus[0])
        holding.phase, holding.ends_s, holding.stop_by_s, holding.why = RUNNING, None, None, ""
        job = state.jobs[holding.lease.job]
        job.lease, job.leaving = name, None
        state.renumber_sets(holding)
        # What happened while the node was silent is unknown. So the next report cannot measure a rate.
        holding.mixed = True
        if holding.credit_s < state.round.ends_s:
            credit.credit(state, max(now_s, holding.credit_s), holding, state.round.ends_s)
    # The table is rebuilt, because it has to be in the order of the leases.
    state.held_leases = {}
    for holding in state.leases.values():
        if holding.phase is not STOPPING:
            state.enter_held(holding)


def leases_started(state: SchedulerState, now_s: float, fact: f.LeasesStarted) -> None:
    """Record that the processes of these leases run."""
    for name in fact.leases:
        holding = state.leases[name]
        if holding.phase is SENT:
            holding.phase = RUNNING
        for other in credit.beside(state, holding):
            credit.charge(state, now_s, other)
            other.mixed = True
        holding.started_s = holding.reported_s = now_s
        job = state.jobs[holding.lease.job]
        job.unstarted, job.failed_on = 0, ()
        if job.started_s is None:
            job.started_s = now_s
            if job.state not in TERMINAL:
                state.may_have_saved.add(job.id)


def progress_made(state: SchedulerState, now_s: float, fact: f.ProgressMade) -> None:
    """Record the progress of jobs."""
    for progress in fact.progress:
        holding = state.leases[progress.lease]
        _advance(state, now_s, state.jobs[holding.lease.job], holding, progress)


def _advance(
    state: SchedulerState, now_s: float, job: Job, holding: Holding, report: Progress | Exit
) -> None:
    """Update a job's progress, and the measured rate of the way in which the job runs."""
    gained = report.steps - job.steps_done
    stepping_s = report.stepping_s - holding.stepping_s
    if state.settings.learn_rates and gained > 0 and stepping_s > 0 and job.spec.reports_steps:
        key = None if holding.mixed else rate_key(state, holding)
        if key is not None and state.rates.observe(key, gained, stepping_s, state.settings.trust_after_s):
            state.stale = True
    if gained > 0:
        isolated = state.isolated_rate.get(job.id, 0.0)
        if isolated > 0:
            job.isolated_s = min(job.isolated_s + gained / isolated, SUM_MAX)
    job.steps_done, job.steps_saved = report.steps, report.saved
    holding.steps, holding.reported_s, holding.stepping_s = report.steps, now_s, report.stepping_s
    holding.mixed = False


def rate_key(state: SchedulerState, holding: Holding) -> RateKey | None:
    """Return the key of the rate that progress under this lease measures; None if it is ambiguous.

    It depends on the leases that hold the GPUs now. The bundle alone is not enough: a partner in it may not have
    started, and a partner that left it may still be stopping.
    """
    bundle, job = holding.bundle, state.jobs[holding.lease.job]
    if not job.spec.job_type:
        return None
    sharing = state.holders.get(holding.lease.gpus[0], ())
    if len(sharing) != len(bundle.jobs):
        return None
    partner = ""
    if len(bundle.jobs) > 1:
        if any(state.leases[name].started_s is None for name in sharing):
            return None
        partner = state.jobs[bundle.jobs[bundle.jobs[0] == job.id]].spec.job_type
    spread = False
    if not (state.settings.consolidated_rates or bundle.label) and bundle.gpus > 1:
        node = state.nodes.get(nodes_of(holding.lease.gpus)[0])
        spread = node is not None and len(nodes_of(holding.lease.gpus)) > -(-bundle.gpus // node.spec.gpus)
    return RateKey(job.spec.job_type, bundle.gpus, bundle.worker_type, partner, spread, bundle.label)


def ranks_exited(state: SchedulerState, now_s: float, fact: f.RanksExited) -> None:
    """Record the exit of a gang's ranks on one node.

    Ranks that ran out of memory count as the first that died: the others died, perhaps sooner, because they lost them.
    """
    holding, end = state.leases[fact.exit.lease], fact.exit
    holding.exited.add(fact.node)
    if holding.died and ran_out_of_memory(end.detail) and not ran_out_of_memory(holding.last_lines):
        end, holding.died = msgspec.structs.replace(end, outcome="failed"), ""
    if end.outcome in ("failed", "node_failed") and not holding.died:
        holding.died, holding.code, holding.last_lines = end.outcome, end.code, end.detail
        holding.died_on = fact.node
        _remember(state.jobs[holding.lease.job], end)
    if fact.node == nodes_of(holding.lease.gpus)[0]:
        holding.lead = LeadExit(fact.exit.outcome, end.steps, end.saved, end.stepping_s, end.ran_s)


def lease_closed(state: SchedulerState, now_s: float, fact: f.LeaseClosed) -> None:
    """Close a lease: free its GPUs, and give them to the leases that waited for them."""
    end = fact.exit
    holding = state.leases[end.lease]
    job = state.jobs[holding.lease.job]
    _advance(state, now_s, job, holding, end)
    # Steps since the last checkpoint are lost, so they do not count, and `isolated_s` shrinks in proportion.
    if end.outcome not in _ORDERLY:
        job.isolated_s *= end.saved / job.steps_done if job.steps_done > 0 else 1.0
        job.steps_done = end.saved
    if end.outcome == "yielded" and not end.stepping_s and holding.unasked and job.spec.reports_steps:
        job.fruitless += 1
        if job.state not in TERMINAL:
            state.protectable.add(job.id)
    job.run_s += end.ran_s
    bundle, kind = holding.bundle, holding.bundle.worker_type
    count_losses(state, kind, bundle.gpus, end, fact.lapsed)
    job.time_s[kind] = job.time_s.get(kind, 0.0) + end.ran_s
    job.gpu_s[kind] = job.gpu_s.get(kind, 0.0) + end.ran_s * bundle.gpus
    # If a rank of a gang died, `ranks_exited` has kept that rank's exit already.
    if not holding.died:
        _remember(job, end)
    for other in credit.beside(state, holding):
        credit.charge(state, now_s, other)
        other.mixed = True
    job.cost_usd += credit.settle(state, holding, end.ran_s)
    credit.take_back(state, now_s, holding)
    budgets.settle(state, now_s, holding.lease.gpus[0])
    state.let_go(holding)
    state.renumber_sets(holding)
    if len(bundle.jobs) > 1:
        _unpair(state, now_s, holding)
    del state.leases[end.lease]
    if job.leaving == end.lease:
        job.leaving = None
    else:
        job.lease = None
        state.held_leases.pop(job.id, None)
    failed_starts.count_exit(state, now_s, job, holding, end, lapsed=fact.lapsed)
    if job.state not in TERMINAL:
        _after_exit(state, now_s, job, end, holding)
    for name in state.blocks.pop(end.lease, ()):
        _unblock(state, now_s, state.leases[name], end.lease)


def _after_exit(state: SchedulerState, now_s: float, job: Job, end: Exit, holding: Holding) -> None:
    """Update the job of a lease that was closed. Whether a failed attempt is retried is decided in `on_nodes`."""
    if end.outcome in ("finished", "failed") and job.lease is not None:
        # The job has been granted its next lease, but does not need that lease any more.
        _forget(state, now_s, state.leases[job.lease])
    if end.outcome == "finished":
        move(state, now_s, job, Move.COMPLETE, "")
    elif end.outcome == "failed":
        job.failures += 1
    elif holding.started_s is None and not end.ran_s:
        if end.outcome == "node_failed":
            failed_starts.count_on_job(job, holding)
        following = state.leases.get(job.lease or "")
        if following is None:
            _undo_start(state, now_s, job, holding, _ORDERLY["yielded"])
        elif following.before is None:
            following.before = holding.before
    else:
        if end.outcome == "node_failed":
            job.node_failures += 1
        elif holding.unasked and not _resized(state, job, holding.bundle.gpus):
            job.preemptions += 1
        if job.lease is None and job.state is RUNS:
            why = holding.why if end.outcome == "yielded" else ""
            move(state, now_s, job, PREEMPT, why or _ORDERLY.get(end.outcome, "its node is gone"))


def _resized(state: SchedulerState, job: Job, width: int) -> bool:
    """Whether a job gave up its GPUs to continue at another width, which is not a preemption."""
    return job.lease is not None and state.leases[job.lease].bundle.gpus != width


def _remember(job: Job, end: Exit) -> None:
    """Keep the exit code and last lines of the last attempt that failed, for users to see."""
    if end.outcome == "failed":
        job.last_exit, job.last_lines = end.code, end.detail


# Exits after which all progress is saved, with the reason to show to users.
_ORDERLY = {"finished": "", "yielded": "its turn is over"}


def _unpair(state: SchedulerState, now_s: float, holding: Holding) -> None:
    """Continue a packed job alone on its GPUs, because its partner is gone or will not start."""
    gpu = holding.lease.gpus[0]
    for name in (*state.holders.get(gpu, ()), *state.claims.get(gpu, ())):
        other = state.leases[name]
        if other.bundle == holding.bundle:
            credit.change_bundle(state, now_s, other, other.bundle._replace(jobs=(other.lease.job,)))


def _unblock(state: SchedulerState, now_s: float, holding: Holding, closed: str) -> None:
    """Note that a lease need not wait for a closed one any more. If it waits for no others, it can be sent."""
    holding.waits_for.discard(closed)
    if not holding.waits_for:
        state.let_go(holding)
        _hold(state, now_s, holding)
        credit.credit(state, now_s, holding, state.round.ends_s)
