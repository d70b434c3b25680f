"""A small state for tests of recovery: jobs, and the states they are in."""

from __future__ import annotations

import json

from scheduler.core.facts import Fact, JobMoved, JobSubmitted
from scheduler.journal.replay import Rules
from scheduler.model.jobs import JobState, after


class Toy:
    """Jobs by id; `check` refuses more than `running_max` running ones."""

    running_max = 10**9

    def __init__(self) -> None:
        self.now_s = 0.0
        self.jobs: dict[str, str] = {}

    def snapshot(self) -> bytes:
        """Return the state as bytes."""
        return json.dumps([self.now_s, self.jobs]).encode()

    @classmethod
    def restore(cls, data: bytes) -> Toy:
        """Return the state of a snapshot."""
        state = cls()
        state.now_s, state.jobs = json.loads(data)
        return state


def apply(state: Toy, now_s: float, fact: Fact) -> None:
    """Apply submissions and moves; other facts only change the time."""
    state.now_s = now_s
    if isinstance(fact, JobSubmitted):
        state.jobs[fact.job] = "queued"
    elif isinstance(fact, JobMoved):
        state.jobs[fact.job] = after(JobState(state.jobs[fact.job]), fact.move)


def check(state: Toy) -> None:
    """Check that no more jobs run than may."""
    running = sum(job_state == "running" for job_state in state.jobs.values())
    if running > Toy.running_max:
        raise AssertionError(f"{running} jobs run, {Toy.running_max} may")


RULES = Rules(Toy, Toy.restore, apply, check)
