"""A state small enough to see through: jobs and where they are in their lives."""

from __future__ import annotations

import json

from scheduler.core.facts import Fact, JobMoved, JobSubmitted
from scheduler.journal.replay import Rules
from scheduler.model.jobs import JobState, after


class Toy:
    """Jobs by id. At most `running_max` of them run, which is what `check` is about."""

    running_max = 10**9

    def __init__(self) -> None:
        self.now_s = 0.0
        self.jobs: dict[str, str] = {}

    def snapshot(self) -> bytes:
        """All of it."""
        return json.dumps([self.now_s, self.jobs]).encode()

    @classmethod
    def restore(cls, data: bytes) -> Toy:
        """Back again."""
        state = cls()
        state.now_s, state.jobs = json.loads(data)
        return state


def apply(state: Toy, now_s: float, fact: Fact) -> None:
    """Submissions and moves; anything else only lets time pass."""
    state.now_s = now_s
    if isinstance(fact, JobSubmitted):
        state.jobs[fact.job] = "queued"
    elif isinstance(fact, JobMoved):
        state.jobs[fact.job] = after(JobState(state.jobs[fact.job]), fact.move)


def check(state: Toy) -> None:
    """No more jobs run than may."""
    running = sum(where == "running" for where in state.jobs.values())
    if running > Toy.running_max:
        raise AssertionError(f"{running} jobs run, {Toy.running_max} may")


RULES = Rules(Toy, Toy.restore, apply, check)
