"""Consequences of failures: nodes go out of use and come back, plans that ran out of memory are struck out."""

from __future__ import annotations

import re

from scheduler.core import on_jobs
from scheduler.core.facts import JobMoved, NodeMoved, PlanStruckOut
from scheduler.core.failed_starts import changes_state, is_guilty, jobs_that_failed, one_line, pause_s
from scheduler.core.messages import Exit
from scheduler.core.on_rounds import SOON_S
from scheduler.core.outcome import Outcome
from scheduler.core.planning.planned_rates import is_measured, plans_left
from scheduler.model.cluster import FAULTY, UP
from scheduler.model.jobs import Job, JobState, Move
from scheduler.model.lease import Bundle

# The last lines of a job whose GPU had no memory left, as PyTorch, CUDA and JAX write them.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|cuda[^\n]*out of memory|RESOURCE_EXHAUSTED: out of memory", re.IGNORECASE
)


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
    if plan is None or plan.label != bundle.label or not _OUT_OF_MEMORY.search(end.detail):
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
