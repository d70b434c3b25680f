"""Consequences of failures and of idle GPUs.

Nodes go out of use and come back; plans that ran out of memory are struck out.

An agent reports the leases whose GPUs and steps stand still, and for how long. A lease is idle once all its nodes have
reported `idle_after_s`. Agents of earlier releases report nothing, so their leases are never idle.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core import on_jobs, on_rounds
from scheduler.core.facts import GpusIdled, JobMoved, NodeMoved, PlanStruckOut
from scheduler.core.failed_starts import changes_state, is_guilty, jobs_that_failed, one_line, pause_s
from scheduler.core.messages import Exit
from scheduler.core.on_rounds import SOON_S
from scheduler.core.outcome import Outcome
from scheduler.core.planning.planned_rates import is_measured, plans_left
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import FAULTY, UP
from scheduler.model.jobs import Job, JobState, Move
from scheduler.model.lease import RUNNING, Bundle, Holding
from scheduler.model.plans import ran_out_of_memory

# What becomes of a job whose GPUs are idle, by `Settings.idle_action`.
_IDLE_MOVES = {"requeue": Move.REQUEUE, "hold": Move.HOLD}


def judge(out: Outcome, job: Job) -> None:
    """After a failed start of this job, take nodes out of use, or bring back nodes that were blamed wrongly."""
    state = out.state
    for name in job.failed_on:
        node = state.nodes.get(name)
        if node is None:
            continue
        guilty = is_guilty(state, node)
        if guilty and node.state is UP:
            why = f"{len(node.failed_starts)} starts in a row failed here ({jobs_that_failed(node)})"
            back_s = out.now_s + pause_s(node)
            out.fact(NodeMoved(node=name, state=FAULTY, why=why, back_s=back_s))
            watch_pauses(out)
        elif not guilty and node.state is FAULTY and node.back_s is not None:
            out.fact(
                NodeMoved(
                    node=name, state=UP, why=f"{jobs_that_failed(node)} cannot be started elsewhere either"
                )
            )


def bring_back(out: Outcome) -> None:
    """Bring back nodes whose pause is over."""
    state = out.state
    for name, node in sorted(state.nodes.items()):
        if node.state is FAULTY and node.back_s is not None and node.back_s <= out.now_s + SOON_S:
            out.fact(NodeMoved(node=name, state=UP, why="it is tried again"))
    watch_pauses(out)


def watch_pauses(out: Outcome) -> None:
    """Set a timer for the end of the first pause of a node."""
    pause_ends = [
        node.back_s for node in out.state.nodes.values() if node.state is FAULTY and node.back_s is not None
    ]
    if pause_ends:
        out.wake(min(pause_ends), "nodes")


def on_trouble(out: Outcome, name: str, trouble: str) -> None:
    """Take a node out of use because its agent reports trouble, or bring it back if `trouble` is empty."""
    trouble = one_line(trouble)
    if changes_state(out.state.nodes[name], trouble):
        why = trouble or "its agent reports that all is well again"
        out.fact(NodeMoved(node=name, state=FAULTY if trouble else UP, why=why))


def strike_out(out: Outcome, job: Job, bundle: Bundle, end: Exit) -> bool:
    """Strike out the plan of an attempt that ran out of memory; return False if the attempt did not.

    A plan by which jobs have made progress stays: something else took the memory, and this is a failure like others.
    The job is retried by another of its plans, whatever its number of retries. If none is left, it fails, as do other
    jobs of its user and type that have none left.
    """
    plan = job.spec.plan_for(bundle.worker_type, bundle.gpus)
    if plan is None or plan.label != bundle.label or not ran_out_of_memory(end.detail):
        return False
    if is_measured(out.state, job.spec, plan):
        return False
    out.fact(PlanStruckOut(job=job.id, worker_type=plan.worker_type, gpus=plan.gpus, label=plan.label))
    event = f"plan {plan.label} ran out of memory on {plan.gpus} × {plan.worker_type}"
    if job.state == JobState.RUNNING and plans_left(out.state, job.spec):
        out.fact(JobMoved(job=job.id, move=Move.RETRY, why=event))
    for other in list(out.state.active.values()):
        spec = other.spec
        is_alike = (spec.user, spec.job_type) == (job.spec.user, job.spec.job_type)
        if is_alike and spec.plans and not plans_left(out.state, spec):
            on_jobs.fail(out, other, f"{event}, and no other plan is left")
    return True


def changes_idle(state: SchedulerState, node: str, idle_s: Mapping[str, float]) -> bool:
    """Whether a node's report changes which of its leases are idle."""
    return any(
        (node in holding.idle_since) != _is_idle(state, holding, idle_s) for holding in state.on_node(node)
    )


def _is_idle(state: SchedulerState, holding: Holding, idle_s: Mapping[str, float]) -> bool:
    after_s = state.settings.idle_after_s
    if not after_s or holding.started_s is None or state.jobs[holding.lease.job].spec.idle_ok:
        return False
    # This also refuses NaN.
    return idle_s.get(holding.lease.id, 0.0) >= after_s


def on_idle(out: Outcome, node: str, idle_s: Mapping[str, float]) -> None:
    """Record which leases of a node are idle; hold or requeue the jobs of those that are idle on all their nodes."""
    state = out.state
    for holding in list(state.on_node(node)):
        is_idle, started_s = _is_idle(state, holding, idle_s), holding.started_s
        if (node in holding.idle_since) != is_idle and started_s is not None:
            lease = holding.lease.id
            since_s = max(out.now_s - idle_s[lease], started_s) if is_idle else None
            out.fact(GpusIdled(node=node, lease=lease, since_s=since_s))
            _act_on_idle(out, holding)


def _act_on_idle(out: Outcome, holding: Holding) -> None:
    """Hold or requeue a job whose GPUs are all idle, if the operator wants that."""
    state = out.state
    move, job = _IDLE_MOVES.get(state.settings.idle_action), state.jobs[holding.lease.job]
    began_s = holding.idle_began_s
    if move is None or began_s is None or holding.phase is not RUNNING or job.state is not JobState.RUNNING:
        return
    gpus = "its GPU was" if holding.bundle.gpus == 1 else f"its {holding.bundle.gpus} GPUs were"
    on_jobs.give_up(out, job, move, f"{gpus} idle for {out.now_s - began_s:.0f} s without a step")
    out.wants_review = True
    on_rounds.kick(out)
