"""Starts that come to nothing: nodes that are taken out of use for them, and pauses of jobs.

A start has failed when its node could not start the job, or when the processes were gone within moments and nobody
knows why. A program that ends with an exit code of its own is no failed start.

Rules:
- A node is taken out of use after STARTS_FAILED_MAX failed starts in a row, of different jobs. It comes back by itself
  after a pause, and the next start decides: if that fails too, the pause doubles; a job that runs ends it.
- One job alone (or one array) can be at fault itself. It takes a node out only if there is another usable node for it
  to be tried on. Once it has failed on a second node, it counts against none.
- A job waits after a failed attempt before it is started again, each time twice as long, until an attempt has run.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.messages import Exit
from scheduler.core.planning.feasibility import listed
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import FAULTY, UP, Node
from scheduler.model.jobs import Job
from scheduler.model.lease import Holding, nodes_of

STARTS_FAILED_MAX = 3
NODE_PAUSE_S, NODE_PAUSE_MAX_S = 60.0, 3600.0
JOB_PAUSE_S, JOB_PAUSE_MAX_S = 1.0, 300.0
MOMENTS_S = 10.0  # processes that are gone so soon were not really started
TROUBLE_CHARS_MAX = 500
STARTS_KEPT = 20  # failed starts of a node that are remembered, the newest ones


# ------------------------------------------------------------------------------------ what `apply` keeps of them


def note_end(
    state: SchedulerState, now_s: float, job: Job, holding: Holding, end: Exit, *, lapsed: bool
) -> None:
    """Count what an exit says about its nodes, and let its job pause."""
    nodes = nodes_of(holding.lease.gpus)
    ran = holding.started_s is not None
    if end.outcome == "node_failed" and not lapsed and end.ran_s < MOMENTS_S:
        name = holding.died_on or nodes[0]
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
        if not lapsed:
            job.again_s = now_s + _doubled(JOB_PAUSE_S, job.pauses, JOB_PAUSE_MAX_S)
            job.pauses += 1
            if not job.is_terminal:
                state.watched[job.id] = job
    elif ran:
        job.pauses = 0


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(first_s * 2.0 ** min(times, 32), most_s)


def pause_s(node: Node) -> float:
    """How long this node would be taken out of use now."""
    return _doubled(NODE_PAUSE_S, node.pauses, NODE_PAUSE_MAX_S)


# --------------------------------------------------------------------------------- what can be said about them


def is_guilty(state: SchedulerState, node: Node) -> bool:
    """Whether the starts that failed in a row are the fault of the node."""
    counted = [name for name in node.failed_starts if _only_here(state, node, name)]
    if len(counted) < STARTS_FAILED_MAX:
        return False
    if len({name.partition("_")[0] for name in counted}) > 1:
        return True
    return any(other.state is UP and other is not node for other in state.nodes.values())


def _only_here(state: SchedulerState, node: Node, name: str) -> bool:
    """Whether a job failed to start on this node and on no other, as far as is known."""
    job = state.jobs.get(name)
    return job is None or set(job.failed_on) <= {node.spec.name}


def jobs_that_failed(node: Node) -> str:
    """Name the jobs whose starts failed on this node."""
    return named_jobs(list(dict.fromkeys(node.failed_starts)))


def named_jobs(names: Sequence[str]) -> str:
    """`job 2`, `jobs 2 and 3`, `jobs 2, 3 and 4 others`."""
    if len(names) == 1:
        return f"job {names[0]}"
    shown = [*names[:2], f"{len(names) - 2} others"] if len(names) > 3 else list(names)
    return f"jobs {listed(shown, 'and')}"


def one_line(trouble: str) -> str:
    """A reason that an agent reports, without what cannot be printed; cut off where it is long."""
    words = " ".join(trouble.split())
    return "".join(filter(str.isprintable, words))[:TROUBLE_CHARS_MAX] or ("trouble" if trouble else "")


def is_news(node: Node, trouble: str) -> bool:
    """Whether what its agent reports changes anything. A node that drains or is away gets nothing anyway."""
    if trouble:
        return node.state is UP or (node.state is FAULTY and node.why != one_line(trouble))
    return node.state is FAULTY and node.back_s is None
