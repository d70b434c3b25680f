"""Failed starts, the nodes that are taken out of use because of failed starts, and the pauses of jobs.

A start has failed in three cases: the node could not start the job; the job's processes disappeared within moments for
unknown reasons; or the start hung, so that the lease lapsed although the link to the node is up and the node never
reported anything about the lease. A program that ends with its own exit code is not a failed start.

Rules:
- A node is taken out of use after STARTS_FAILED_MAX failed starts in a row, of different jobs. It returns after a
  pause. If the next start there fails too, the next pause is twice as long; if it succeeds, the count restarts.
- If all failed starts are of one job or array, the job itself may be at fault. So they take a node out of use only if
  there is another usable node. Once the job has failed on a second node, its starts count against neither node.
- After an attempt that failed within JOB_PAUSE_MAX_S, a job pauses before its next start. Each pause is twice as long
  as the one before, until an attempt does better.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.messages import Exit
from scheduler.core.planning.feasibility import listed
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import FAULTY, SILENT, UP, Node, NodeState
from scheduler.model.jobs import Job
from scheduler.model.lease import Holding, nodes_of

STARTS_FAILED_MAX = 3
# The first and the longest pause of a node, and of a job.
NODE_PAUSE_S, NODE_PAUSE_MAX_S = 60.0, 3600.0
JOB_PAUSE_S, JOB_PAUSE_MAX_S = 1.0, 300.0
# Processes that disappear within this time count as not started.
MOMENTS_S = 10.0
TROUBLE_CHARS_MAX = 500
# How many failed starts of a node are kept.
STARTS_KEPT = 20


# ------------------------------------------------------------------------------- used by `apply`


def count_exit(
    state: SchedulerState, now_s: float, job: Job, holding: Holding, end: Exit, *, lapsed: bool
) -> None:
    """Count an exit for or against the nodes of its lease, and pause its job if the attempt failed."""
    nodes = nodes_of(holding.lease.gpus)
    ran = holding.started_s is not None
    hung = lapsed and not ran and end.outcome == "node_failed"
    if hung or (end.outcome == "node_failed" and not lapsed and end.ran_s < MOMENTS_S):
        name = hung_on(state, holding) if hung else holding.died_on or nodes[0]
        node = state.nodes.get(name)
        if node is not None:
            node.failed_starts = [*node.failed_starts, job.id][-STARTS_KEPT:]
        if name not in job.failed_on:
            job.failed_on = (*job.failed_on, name)
    elif ran:
        for name in nodes:
            node = state.nodes.get(name)
            if node is not None and node.failed_starts:
                node.failed_starts, node.pauses = [], 0
    if end.outcome in ("failed", "node_failed") and end.ran_s < JOB_PAUSE_MAX_S:
        if hung or not lapsed:
            job.again_s = now_s + _doubled(JOB_PAUSE_S, job.pauses, JOB_PAUSE_MAX_S)
            job.pauses += 1
            if not job.is_terminal:
                state.to_review[job.id] = job
    elif ran:
        job.pauses = 0


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(first_s * 2.0 ** min(times, 32), most_s)


def pause_s(node: Node) -> float:
    """Return how long this node would be taken out of use now."""
    return _doubled(NODE_PAUSE_S, node.pauses, NODE_PAUSE_MAX_S)


# --------------------------------------------------------------- used by the handlers of messages


def hung_on(state: SchedulerState, holding: Holding) -> str:
    """For a lease that never started: return its first linked node without an exit; empty if there is none."""
    for name in nodes_of(holding.lease.gpus):
        node = state.nodes.get(name)
        if node is not None and name not in holding.exited and node.state not in (SILENT, NodeState.LOST):
            return name
    return ""


def is_guilty(state: SchedulerState, node: Node) -> bool:
    """Whether the node is to blame for the starts in a row that failed there."""
    counted = [job for job in node.failed_starts if _only_here(state, node, job)]
    if len(counted) < STARTS_FAILED_MAX:
        return False
    if len({job.partition("_")[0] for job in counted}) > 1:
        return True
    return any(other.state is UP and other is not node for other in state.nodes.values())


def _only_here(state: SchedulerState, node: Node, name: str) -> bool:
    """Whether this is the only node on which the job's latest starts failed."""
    job = state.jobs.get(name)
    return job is None or set(job.failed_on) <= {node.spec.name}


def jobs_that_failed(node: Node) -> str:
    """Name the jobs whose starts failed on this node."""
    return named_jobs(list(dict.fromkeys(node.failed_starts)))


def named_jobs(names: Sequence[str]) -> str:
    """Name jobs as in `job 2`, `jobs 2 and 3`, `jobs 2, 3 and 4 others`."""
    if len(names) == 1:
        return f"job {names[0]}"
    words = [*names[:2], f"{len(names) - 2} others"] if len(names) > 3 else list(names)
    return f"jobs {listed(words, 'and')}"


def one_line(trouble: str) -> str:
    """Return the trouble that an agent reports as one printable line, cut off if it is long."""
    words = " ".join(trouble.split())
    return "".join(filter(str.isprintable, words))[:TROUBLE_CHARS_MAX] or ("trouble" if trouble else "")


def changes_state(node: Node, trouble: str) -> bool:
    """Whether an agent's report changes the state of its node. `trouble`: what the agent reports; empty: all is well.

    Nodes that are draining or away keep their state.
    """
    if trouble:
        return node.state is UP or (node.state is FAULTY and node.why != one_line(trouble))
    return node.state is FAULTY and node.back_s is None


def count_on_job(job: Job, holding: Holding) -> None:
    """Count a start of this job that failed on the nodes of the lease."""
    nodes = nodes_of(holding.lease.gpus)
    job.node_failures += 1
    job.unstarted += 1
    if holding.before is not None:
        holding.before = holding.before[0], f"it could not be started on {', '.join(nodes)}"
