"""Jobs and nodes in words: parts done, where a job runs and why it does not. Pure; `now` is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from gavel.cli.io.units import short_number
from gavel.client.results import Job, JobState, Node, NodeState

STATE_STYLES = {
    JobState.RUNNING: "green",
    JobState.COMPLETED: "dim",
    JobState.FAILED: "red",
    JobState.PREEMPTED: "yellow",
    JobState.HELD: "magenta",
    JobState.CANCELLED: "dim",
}
NODE_STYLES = {
    NodeState.UP: "green",
    NodeState.DRAINING: "yellow",
    NodeState.SILENT: "yellow",
    NodeState.LOST: "red",
    NodeState.FAULTY: "red",
}
NODES_SHOWN = 3


def state_text(state: JobState) -> Text:
    """In its colour."""
    return Text(state.value, style=STATE_STYLES.get(state, ""))


def node_state_text(node: Node) -> Text:
    """In its colour; a node that drains is told whether it is empty."""
    return Text(node.state.value, style=NODE_STYLES.get(node.state, ""))


def job_on(job: Job) -> str:
    """`a100×4` where it runs, or ran longest; `×4` or `×2-8` where it waits."""
    if job.placement is not None:
        return f"{job.placement.worker_type}×{len(job.placement.gpus)}"
    if job.ended and job.run_s and job.time_s:
        kind = max(job.time_s, key=lambda name: job.time_s[name])
        return f"{kind}×{round(job.gpu_s.get(kind, 0.0) / job.time_s[kind])}"
    least, most = job.spec.gpus_min, job.spec.gpus_max
    width = f"{least}-{most}" if least and most and least != most else str(job.spec.gpus or 1)
    return f"×{width}"


def job_progress(job: Job) -> str:
    """`37%`, or the steps where nobody knows of how many."""
    part = job.progress
    if part is not None:
        return f"{100 * part:.0f}%" if part in (0.0, 1.0) else f"{min(max(100 * part, 1), 99):.0f}%"
    return f"{short_number(job.steps_done)} steps" if job.steps_done else ""


def job_ran_s(job: Job, now: datetime) -> float:
    """Seconds with processes, over all attempts, up to now."""
    place = job.placement
    if place is None or place.since is None or place.phase not in ("running", "stopping"):
        return job.run_s
    return job.run_s + max((now - place.since).total_seconds(), 0.0)


def job_waited_s(job: Job, now: datetime) -> float:
    """All the other seconds, from its submission to its end or to now."""
    if job.submitted is None:
        return 0.0
    return max(((job.ended or now) - job.submitted).total_seconds() - job_ran_s(job, now), 0.0)


def job_where(job: Job) -> str:
    """The nodes of one that runs, the reason of one that does not; both of one that is stopped or has ended."""
    place = job.placement
    if place is None:
        return "; ".join(filter(None, (few(job.nodes), job_why(job))))
    words = few(place.nodes)
    if place.with_job:
        words += f" with {place.with_job}"
    if place.phase == "running":
        return words
    why = "" if job.state is JobState.RUNNING else job_why(job)
    return f"{why}{'; ' if why else ''}{words} ({place.phase})"


def job_why(job: Job) -> str:
    """Why it does not run, or how it failed."""
    if job.blocked_by and not job.state.is_final:
        return f"after {few(job.blocked_by)}"
    if job.state is JobState.FAILED and job.exit_code is not None:
        return why_with_exit_code(job)
    return why_words(job)


def why_with_exit_code(job: Job) -> str:
    """Return the reason of the job's state, after its exit code where the reason does not tell how it exited."""
    exits = (f"code {job.exit_code}", "killed by", "not be started")
    if job.exit_code is None or any(words in job.why for words in exits):
        return job.why
    return "; ".join(filter(None, (f"exit code {job.exit_code}", job.why)))


def why_words(job: Job) -> str:
    """Of its last move; who made it, where that is all there is to say: `by ann`."""
    did, by, who = job.why.partition(" by ")
    told = {"hold": JobState.HELD, "cancel": JobState.CANCELLED}.get(did) is job.state
    return f"by {who}" if by and told else job.why


def few(names: Sequence[str], most: int = NODES_SHOWN) -> str:
    """`a, b, c +4`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" +{rest}" if rest > 0 else "")


def ids(jobs: Sequence[str]) -> str:
    """`job 17`, `jobs 17, 18 and 19`, `jobs 12_0 to 12_9 (10)`."""
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    arrays = {job.partition("_")[0] for job in jobs}
    if len(jobs) > 3 and (len(arrays) == 1 or all("_" not in job for job in jobs)):
        return f"jobs {jobs[0]} to {jobs[-1]} ({len(jobs)})"
    return (
        f"jobs {', '.join(jobs[:-1])} and {jobs[-1]}"
        if len(jobs) <= 12
        else f"{len(jobs)} jobs from {jobs[0]}"
    )
