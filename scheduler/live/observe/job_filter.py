"""Filters of jobs, and pages of the jobs that match: newest first, stable while jobs come and go."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import math
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from fnmatch import translate
from typing import TypeVar

from protos.gavel.v1 import jobs_pb2
from scheduler.core.state import SchedulerState
from scheduler.live.wire.job_view import seconds
from scheduler.live.wire.jobs import STATES
from scheduler.model.bounds import NAME_CHARS_MAX
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import TERMINAL, Job
from scheduler.model.lease import nodes_of

# How many jobs are matched before other tasks have their turn.
SLICE = 2000
# How many jobs are described, which takes longer, before other tasks have their turn.
SHOWN_SLICE = 200
Matches = Callable[[Job], bool]
T = TypeVar("T")


def matcher(state: SchedulerState, wire: jobs_pb2.JobFilter) -> Matches:
    """Return a function that tests whether a job matches. Raise InvalidSpec for a filter that is not valid."""
    tests: list[Matches] = []
    if wire.states:
        for number in wire.states:
            if number not in STATES:
                raise InvalidSpec("filter.states", f"has {number}, which is no state")
        states = frozenset(STATES[number] for number in wire.states)
        tests.append(lambda job: job.state in states)
    if wire.jobs:
        tests.append(_ids(frozenset(wire.jobs)))
    for name in ("user", "job_type"):
        if getattr(wire, name):
            tests.append(_equal(name, getattr(wire, name)))
    if wire.tenant:
        tests.append(_below(wire.tenant.rstrip("/")))
    if wire.name:
        if len(wire.name) > NAME_CHARS_MAX:
            raise InvalidSpec("filter.name", f"is longer than {NAME_CHARS_MAX} characters")
        pattern = re.compile(translate(wire.name.replace("[", "[[]")))
        tests.append(lambda job: pattern.match(job.spec.name) is not None)
    if wire.worker_type or wire.node:
        tests.append(_placed(state, wire.worker_type, wire.node))
    if wire.HasField("submitted_since"):
        since_s = seconds(wire.submitted_since)
        tests.append(lambda job: job.submitted_s >= since_s)
    if wants_ended(wire):
        ended_since_s = seconds(wire.ended_since)
        tests.append(lambda job: job.ended_s is not None and job.ended_s >= ended_since_s)
    return lambda job: all(test(job) for test in tests)


def wants_ended(wire: jobs_pb2.JobFilter) -> bool:
    """Whether the filter asks for ended jobs alone. The history has all of them, the state only some."""
    return wire.ended or wire.HasField("ended_since")


def _ids(wanted: frozenset[str]) -> Matches:
    return lambda job: job.id in wanted or (bool(job.spec.array) and job.id.partition("_")[0] in wanted)


def _equal(name: str, value: str) -> Matches:
    return lambda job: getattr(job.spec, name) == value


def _below(tenant: str) -> Matches:
    return lambda job: job.spec.tenant == tenant or job.spec.tenant.startswith(f"{tenant}/")


def _placed(state: SchedulerState, worker_type: str, node: str) -> Matches:
    def is_there(job: Job) -> bool:
        holding = state.leases.get(job.lease or job.leaving or "")
        if holding is None:
            return False
        if worker_type and holding.bundle.worker_type != worker_type:
            return False
        return not node or node in nodes_of(holding.lease.gpus)

    return is_there


async def in_slices(jobs: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield the jobs in slices; other tasks have a turn after each slice."""
    for at in range(0, len(jobs), size):
        yield jobs[at : at + size]
        await asyncio.sleep(0)


class Page:
    """The place at which a page begins, and its tokens. A token is valid for one filter only."""

    def __init__(self, wire: jobs_pb2.JobFilter, token: str) -> None:
        self._about = hashlib.sha256(wire.SerializeToString(deterministic=True)).hexdigest()[:16]
        self._places = 2 if wants_ended(wire) else 1
        self.before = self._read(token) if token else None

    def _read(self, token: str) -> tuple[float, ...]:
        wrong = InvalidSpec("page_token", "is not a token of this scheduler: begin without one")
        try:
            *before, about = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise wrong from None
        if not all(type(part) in (int, float) for part in before) or type(about) is not str:
            raise wrong
        if about != self._about:
            raise InvalidSpec("page_token", "belongs to a list with another filter: begin without one")
        if len(before) != self._places or not all(map(math.isfinite, before)):
            raise wrong
        return tuple(before)

    def token(self, *last: float) -> str:
        """Return the token of the page after a job: after its order, or after its end and its order."""
        return base64.urlsafe_b64encode(json.dumps([*last, self._about]).encode()).decode()

    def left_of(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs that stand on this page or later ones. `jobs` and the result have the oldest first."""
        if self.before is None:
            return jobs
        return jobs[: bisect_left(jobs, self.before[0], key=lambda job: job.order)]


def candidates(state: SchedulerState, wire: jobs_pb2.JobFilter) -> list[Job]:
    """Return jobs that may match, oldest first: all jobs, those that have not ended, or those the filter names."""
    if not wire.jobs:
        lives = bool(wire.states) and not any(STATES.get(number) in TERMINAL for number in wire.states)
        return list((state.active if lives else state.jobs).values())
    names: dict[str, None] = {}
    for name in wire.jobs:
        names.update(dict.fromkeys(state.arrays.get(name, (name,))))
    return sorted([state.jobs[name] for name in names if name in state.jobs], key=lambda job: job.order)
