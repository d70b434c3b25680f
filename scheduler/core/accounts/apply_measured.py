"""The part of `apply` about what jobs have measured about themselves, and about losses of nodes."""

from __future__ import annotations

from scheduler.core import facts as f
from scheduler.core.messages import Exit
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job
from scheduler.model.lease import RUNNING, SENT, Holding, nodes_of
from scheduler.model.measured import extra_save_s, final_save_s, pool_key
from scheduler.model.node_losses import NodeLosses


def job_measured(state: SchedulerState, now_s: float, fact: f.JobMeasured) -> None:
    """Enter what a job has measured about itself. Its lease gets more time to save if that is needed, never less.

    An agent may still have the older time, so if the time became shorter, the GPUs could count as free too early.
    """
    job = state.jobs[fact.job]
    holding = state.leases.get(job.lease or "")
    key = pool_key(job, fact.worker_type, fact.gpus)
    state.measured.enter(job.id, key, fact.values, fact.node, gang_of(state, job))
    if holding is None or holding.phase not in (SENT, RUNNING):
        return
    extra_s = extra_save_of(state, holding)
    if extra_s > holding.extra_save_s:
        holding.extra_save_s = extra_s
        state.renumber_sets(holding)


def gang_of(state: SchedulerState, job: Job) -> tuple[str, ...]:
    """Return the nodes of a job's lease; empty if it has none."""
    holding = state.leases.get(job.lease or "")
    return nodes_of(holding.lease.gpus) if holding is not None else ()


def extra_save_of(state: SchedulerState, holding: Holding) -> float:
    """Return how much longer than usual the job of a lease may take to save."""
    book, bundle = state.measured, holding.bundle
    if not (book.jobs or book.pools):
        return 0.0
    job = state.jobs[holding.lease.job]
    save_s = book.time_s(job.id, pool_key(job, bundle.worker_type, bundle.gpus), final_save_s)
    return extra_save_s(save_s, state.settings.round_s)


def count_losses(state: SchedulerState, worker_type: str, gpus: int, end: Exit, lapsed: bool) -> None:
    """Count the running time of a lease that was closed, and the loss of its node if that ended it."""
    losses = state.losses.setdefault(worker_type, NodeLosses())
    losses.gpu_s += end.ran_s * gpus
    losses.losses += lapsed and end.outcome == "node_failed" and end.ran_s > 0
