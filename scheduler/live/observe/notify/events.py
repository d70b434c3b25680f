"""The events that channels can receive, and the facts that they are taken from. No clock, no file, no thread.

To add an event: its entry in EVENTS, with a function that returns what messages say about it. It reads a fact when the
fact has been applied to the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from scheduler.core import facts as f
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState
from scheduler.model.gpu_quotas import Level
from scheduler.model.jobs import Job, JobState, Move
from scheduler.model.lease import nodes_of

# The longest reason in a message.
WHY_CHARS_MAX = 500

Details = dict[str, Any]


class Happening(NamedTuple):
    """An event that took place. `details` becomes JSON; `job` is the id of the job it concerns, or empty."""

    event: str
    details: Details
    job: str = ""


class Event(NamedTuple):
    """An event: its meaning for the pages, the types of its facts, and the function that reads such a fact.

    The function returns the details, or None if this fact is another event or none. `word`: what users call the event
    in `notify` of their jobs; empty: they cannot choose it.
    """

    meaning: str
    facts: tuple[type[f.Fact], ...]
    read: Callable[[Rules, Any], Details | None]
    word: str = ""


class Rules:
    """Facts in, events out."""

    def __init__(self, state: SchedulerState) -> None:
        """`state`: every record is applied to it before it is taken in."""
        self.state = state
        self.now_s = 0.0
        # The fact before the present one in its record.
        self.previous: f.Fact | None = None
        # Whether the policy failed when it was last asked.
        self.policy_fails = False
        # Lease → its job, for the open leases.
        self._job_of = self._open_leases()
        # The jobs that completed before the start, by time, as long as records of that time are taken in.
        self._completed_at: dict[float, list[str]] | None = None
        # Lease → since when it has been idle, if that was an event.
        self.idle_since: dict[str, float] = {}

    @contextmanager
    def past(self) -> Iterator[None]:
        """Take in records that were applied before the start. Leases that they close are unknown."""
        self._completed_at = {}
        for job in self.state.jobs.values():
            if job.state is JobState.COMPLETED and job.ended_s is not None:
                self._completed_at.setdefault(job.ended_s, []).append(job.id)
        try:
            yield
        finally:
            self._completed_at = None
            for name, holding in self.state.leases.items():
                if holding.idle_began_s is not None:
                    self.idle_since[name] = holding.idle_began_s

    def take(self, now_s: float, facts: Sequence[f.Fact]) -> Iterator[Happening]:
        """Take in a record, and yield its events."""
        self.now_s, self.previous = now_s, None
        for fact in facts:
            if self._completed_at is None and isinstance(fact, (f.RoundPlanned, f.GpusFilled)):
                self._job_of |= {lease.id: lease.job for lease in fact.granted}
            for name, event in _BY_FACT.get(type(fact), ()):
                details = event.read(self, fact)
                if details is not None:
                    job = details.get("job", {}).get("id", "")
                    yield Happening(name, {"at": time_text(now_s), **details}, job)
            self.previous = fact
        # Leases that were never sent to their nodes end without a fact of their own.
        if any(isinstance(fact, f.RoundPlanned) for fact in facts):
            self._job_of = self._open_leases()
            self.idle_since = {
                name: since_s for name, since_s in self.idle_since.items() if name in self._job_of
            }

    def _open_leases(self) -> dict[str, str]:
        return {name: holding.lease.job for name, holding in self.state.leases.items()}

    def completed_by(self, lease: str) -> Job | None:
        """Return the job that this record completed by closing the lease, or None."""
        if self._completed_at is not None:
            names = self._completed_at.get(self.now_s)
            return self.state.jobs[names.pop()] if names else None
        job = self.state.jobs.get(self._job_of.pop(lease, ""))
        is_completed = job is not None and job.state is JobState.COMPLETED and job.ended_s == self.now_s
        return job if is_completed else None


def _completed(rules: Rules, fact: f.LeaseClosed) -> Details | None:
    job = rules.completed_by(fact.exit.lease)
    return None if job is None else _job_details(job.id, job, "completed")


def _moved(move: Move, words: str) -> Callable[[Rules, f.JobMoved], Details | None]:
    """Return a reader of the facts that this move of a job took place."""

    def read(rules: Rules, fact: f.JobMoved) -> Details | None:
        if fact.move is not move:
            return None
        return _job_details(
            fact.job, rules.state.jobs.get(fact.job), words, fact.why[:WHY_CHARS_MAX], fact.by
        )

    return read


def _gpus_idle(rules: Rules, fact: f.GpusIdled) -> Details | None:
    holding = rules.state.leases.get(fact.lease)
    began_s = None if holding is None else holding.idle_began_s
    # A gang is idle when all its nodes have reported it.
    if (
        holding is None
        or began_s is None
        or fact.since_s is None
        or rules.idle_since.get(fact.lease) == began_s
    ):
        return None
    rules.idle_since[fact.lease] = began_s
    lease, since = holding.lease, time_text(began_s)
    gpus = "its GPU" if len(lease.gpus) == 1 else f"its {len(lease.gpus)} GPUs"
    nodes = nodes_of(lease.gpus)
    words = f"has left {gpus} on {', '.join(nodes)} idle since {since}"
    details = _job_details(lease.job, rules.state.jobs.get(lease.job), words)
    return details | {"since": since, "nodes": list(nodes)}


def _node_lost(rules: Rules, fact: f.NodeMoved) -> Details | None:
    if fact.state != NodeState.LOST:
        return None
    node = rules.state.nodes.get(fact.node)
    # Operators stop the agents of drained nodes on purpose.
    if node is not None and node.drained:
        return None
    why = fact.why[:WHY_CHARS_MAX]
    return {"text": f"node {fact.node} is lost{': ' if why else ''}{why}", "node": fact.node, "why": why}


def _gpus_broken(rules: Rules, fact: f.GpusBroken) -> Details | None:
    # A node that joins again has the same broken GPUs as before.
    if isinstance(rules.previous, f.NodeJoined) and rules.previous.spec.name == fact.node:
        return None
    gpus = ", ".join(map(str, fact.gpus))
    text = f"GPU {gpus} of node {fact.node} reported a fatal error and is no longer used"
    if len(fact.gpus) > 1:
        text = f"GPUs {gpus} of node {fact.node} reported fatal errors and are no longer used"
    return {"text": text, "node": fact.node, "gpus": list(fact.gpus)}


def _budget(rules: Rules, fact: f.BudgetReached) -> Details:
    level = Level(fact.tenant, fact.user or None)
    unit = "GPU-hours" if fact.resource == "gpu_hours" else "cost"
    spent = f"{round(fact.spent, 2):g} of {fact.limit:g} {unit} of the {fact.period}"
    text = f"{level} has spent {spent}, {fact.percent} % or more"
    if fact.percent == 100:
        text = f"the budget of {level} is spent ({spent}): its jobs wait until {time_text(fact.renews_s)}"
    return {
        "text": text,
        "tenant": fact.tenant,
        "user": fact.user,
        "resource": fact.resource,
        "period": fact.period,
        "limit": fact.limit,
        "spent": round(fact.spent, 6),
        "percent": fact.percent,
        "renews_at": time_text(fact.renews_s),
    }


def _policy_failed(rules: Rules, fact: f.AllocationAdopted | f.AllocationFailed) -> Details | None:
    failed = fact.failed if isinstance(fact, f.AllocationAdopted) else fact.why
    was_failing, rules.policy_fails = rules.policy_fails, bool(failed)
    # A policy that goes on failing is no further event.
    if was_failing or not failed:
        return None
    why = failed[:WHY_CHARS_MAX]
    return {"text": f"the policy {rules.state.settings.policy} failed: {why}", "why": why}


EVENTS: dict[str, Event] = {
    "job_completed": Event("A job completed.", (f.LeaseClosed,), _completed, "completed"),
    "job_failed": Event(
        "A job failed, and is not tried again.", (f.JobMoved,), _moved(Move.FAIL, "failed"), "failed"
    ),
    "job_cancelled": Event(
        "A user cancelled a job.", (f.JobMoved,), _moved(Move.CANCEL, "was cancelled"), "cancelled"
    ),
    "job_held": Event(
        "A job is held, by a user, because its starts keep failing, or because its GPUs are idle.",
        (f.JobMoved,),
        _moved(Move.HOLD, "is held"),
        "held",
    ),
    "gpus_idle": Event(
        "A job has left all its GPUs idle for `idle_after_s`.", (f.GpusIdled,), _gpus_idle, "idle"
    ),
    "node_lost": Event(
        "A node that was not drained is lost: its agent is silent, and its leases are over.",
        (f.NodeMoved,),
        _node_lost,
    ),
    "gpu_broken": Event("GPUs of a node reported a fatal error.", (f.GpusBroken,), _gpus_broken),
    "budget": Event(
        "A tenant, or one of its users, has spent 80 % of a budget, or so much that its jobs wait.",
        (f.BudgetReached,),
        _budget,
    ),
    "policy_failed": Event(
        "The policy began to fail; other shares are used until it succeeds.",
        (f.AllocationAdopted, f.AllocationFailed),
        _policy_failed,
    ),
}
_BY_FACT: dict[type[f.Fact], list[tuple[str, Event]]] = {}
for _name, _event in EVENTS.items():
    for _fact in _event.facts:
        _BY_FACT.setdefault(_fact, []).append((_name, _event))


def time_text(at_s: float) -> str:
    """Return a time as in 2026-11-23T12:00:00Z."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _job_details(name: str, job: Job | None, words: str, why: str = "", by: str = "") -> Details:
    """Describe what happened to a job. `job`: None if the state has forgotten it."""
    fields: Details = {"id": name}
    title = owner = ""
    if job is not None:
        title = f" ({job.spec.name})" if job.spec.name else ""
        owner = f" of {job.spec.user}" if job.spec.user else ""
        fields |= {
            "name": job.spec.name,
            "user": job.spec.user,
            "tenant": job.spec.tenant,
            "job_type": job.spec.job_type,
            "state": job.state.value,
            "attempts": job.attempt,
            "last_exit_code": job.last_exit,
            "run_s": round(job.run_s, 1),
        }
    # What a user does is reason enough.
    reason = f" by {by}" if by else f": {why}" if why else ""
    text = f"job {name}{title}{owner} {words}{reason}"
    return {"text": text, "job": fields, "why": why, "by": by}
