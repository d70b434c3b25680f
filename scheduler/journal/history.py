"""Check whether a history of facts keeps the scheduler's promises, without using the code that made the facts.

A broken promise is reported by its name. The promises:

    two_holders     processes on a GPU belong to one job, or to a packed pair on exactly the same GPUs
    two_attempts    a job has processes under one lease at a time
    two_ends        a job ends once, and gets no lease and no other state after that
    stale_attempt   each attempt of a job has a greater number than the one before, within and across epochs
    unknown         facts are about jobs, leases and nodes that exist

A history may begin at a snapshot; then the state in the snapshot counts as correct.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.core.facts import (
    Fact,
    GpusFilled,
    JobMoved,
    JobsForgotten,
    JobSubmitted,
    JobUpdated,
    LeaseClosed,
    LeasesStarted,
    NodeJoined,
    NodeRemoved,
    RoundPlanned,
)
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Move
from scheduler.model.lease import Lease, nodes_of

ENDS = frozenset({Move.COMPLETE, Move.FAIL, Move.CANCEL})
# How many of the last facts about the job are reported with a broken promise.
STORY_LAST = 12


class BrokenPromise(NamedTuple):
    """A promise that a fact breaks."""

    promise: str
    job: str
    fault: str
    at_s: float
    # The last facts about the job.
    story: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.promise}: {self.fault}"


class History:
    """A check of facts one by one, from the beginning or from a state before them."""

    def __init__(self, before: SchedulerState | None = None) -> None:
        self.broken: list[BrokenPromise] = []
        # Whether facts about jobs came before this history; nodes that never joined are then accepted.
        self._partial = before is not None and bool(before.jobs)
        # For each job, whether it has ended.
        self._jobs: dict[str, bool] = {}
        # Jobs of which a lease was closed with the outcome `finished`; they may be forgotten like ended jobs.
        self._finished: set[str] = set()
        # Leases that are granted and not closed.
        self._open: dict[str, Lease] = {}
        # Leases with processes.
        self._running: dict[str, Lease] = {}
        # For each job, the epoch and number of its last attempt.
        self._attempts: dict[str, tuple[int, int]] = {}
        self._nodes: set[str] = set()
        # For each job, the last facts about it in words.
        self._stories: dict[str, list[str]] = {}
        if before is not None:
            self._begin(before)

    def _begin(self, state: SchedulerState) -> None:
        self._nodes = set(state.nodes)
        for job in state.jobs.values():
            self._jobs[job.id] = job.is_terminal
        for holding in state.leases.values():
            lease = holding.lease
            self._open[lease.id] = lease
            self._attempts[lease.job] = max(
                self._attempts.get(lease.job, (0, 0)), (lease.epoch, lease.attempt)
            )
            if holding.started_s is not None:
                self._running[lease.id] = lease

    def check(self, now_s: float, fact: Fact) -> None:
        """Check the next fact, and add the promises that it breaks to `broken`."""
        match fact:
            case JobSubmitted():
                self._note(fact.job, now_s, "submitted")
                if fact.job in self._jobs:
                    self._break("unknown", fact.job, f"job {fact.job} is submitted twice", now_s)
                self._jobs[fact.job] = False
            case JobMoved():
                self._moved(now_s, fact)
            case JobUpdated():
                self._note(fact.job, now_s, f"updated by {fact.by}" if fact.by else "updated")
                if fact.job not in self._jobs:
                    self._break(
                        "unknown", fact.job, f"job {fact.job} is updated but was never submitted", now_s
                    )
            case JobsForgotten():
                for job in fact.jobs:
                    self._forgotten(now_s, job)
            case NodeJoined():
                self._nodes.add(fact.spec.name)
            case NodeRemoved():
                self._nodes.discard(fact.node)
            case RoundPlanned() | GpusFilled():
                for lease in fact.granted:
                    self._granted(now_s, lease)
            case LeasesStarted():
                for name in fact.leases:
                    self._started(now_s, name)
            case LeaseClosed():
                self._closed(now_s, fact)

    def _moved(self, now_s: float, fact: JobMoved) -> None:
        self._note(fact.job, now_s, f"{fact.move}{f': {fact.why}' if fact.why else ''}")
        ended = self._jobs.get(fact.job)
        if ended is None:
            self._break("unknown", fact.job, f"job {fact.job} is moved but was never submitted", now_s)
        elif ended:
            self._break(
                "two_ends", fact.job, f"job {fact.job} had ended and is moved by '{fact.move}'", now_s
            )
        self._jobs[fact.job] = bool(ended) or fact.move in ENDS

    def _forgotten(self, now_s: float, job: str) -> None:
        ended = self._jobs.pop(job, None)
        if ended is None:
            self._break("unknown", job, f"job {job} is forgotten but was never submitted", now_s)
        elif not ended and job not in self._finished:
            self._break("unknown", job, f"job {job} is forgotten but had not ended", now_s)
        self._finished.discard(job)
        self._attempts.pop(job, None)
        self._stories.pop(job, None)

    def _granted(self, now_s: float, lease: Lease) -> None:
        job = lease.job
        self._note(job, now_s, f"lease {lease.id}, attempt {lease.attempt}, on {', '.join(lease.gpus)}")
        if job not in self._jobs:
            self._break(
                "unknown", job, f"lease {lease.id} is for job {job}, which was never submitted", now_s
            )
        elif self._jobs[job]:
            self._break("two_ends", job, f"job {job} had ended and is given lease {lease.id}", now_s)
        token = lease.epoch, lease.attempt
        if token <= self._attempts.get(job, (-1, -1)) or lease.attempt <= self._attempts.get(job, (0, -1))[1]:
            self._break(
                "stale_attempt", job, f"attempt {lease.attempt} of job {job} is no later than its last", now_s
            )
        self._attempts[job] = token
        for node in nodes_of(lease.gpus):
            if node not in self._nodes and not self._partial:
                self._break("unknown", job, f"lease {lease.id} is on node {node}, which never joined", now_s)
        self._open[lease.id] = lease

    def _started(self, now_s: float, name: str) -> None:
        lease = self._open.get(name)
        if lease is None:
            self._break("unknown", "", f"lease {name} is started but was not open", now_s)
            return
        self._note(lease.job, now_s, f"lease {name} started")
        gpus = set(lease.gpus)
        neighbours = [other for other in self._running.values() if not gpus.isdisjoint(other.gpus)]
        for other in neighbours:
            if len(neighbours) > 1 or set(other.gpus) != gpus or other.job == lease.job:
                shared = ", ".join(sorted(gpus & set(other.gpus)))
                fault = f"jobs {other.job} and {lease.job} have processes on {shared}"
                self._break("two_holders", lease.job, fault, now_s)
        if any(other.job == lease.job for other in self._running.values()):
            self._break("two_attempts", lease.job, f"job {lease.job} has processes under two leases", now_s)
        self._running[name] = lease

    def _closed(self, now_s: float, fact: LeaseClosed) -> None:
        lease = self._open.pop(fact.exit.lease, None)
        self._running.pop(fact.exit.lease, None)
        if lease is None:
            self._break("unknown", "", f"lease {fact.exit.lease} is closed but was not open", now_s)
            return
        self._note(lease.job, now_s, f"lease {lease.id} closed: {fact.exit.outcome}")
        if fact.exit.outcome == "finished":
            self._finished.add(lease.job)

    def _note(self, job: str, now_s: float, event: str) -> None:
        story = self._stories.setdefault(job, [])
        story.append(f"{now_s:.3f} {event}")
        del story[:-STORY_LAST]

    def _break(self, promise: str, job: str, fault: str, now_s: float) -> None:
        self.broken.append(BrokenPromise(promise, job, fault, now_s, tuple(self._stories.get(job, ()))))
