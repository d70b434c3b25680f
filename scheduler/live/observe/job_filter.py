"""Filters of jobs."""

from __future__ import annotations

import asyncio
import re
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
# How many jobs are turned into messages before other tasks have their turn. This takes longer than matching.
SHOWN_SLICE = 200
Matches = Callable[[Job], bool]
T = TypeVar("T")


def matcher(state: SchedulerState, wire: jobs_pb2.JobFilter) -> Matches:
    """Return a function that tests whether a job matches. Raise InvalidSpec if the filter is not valid."""
    tests: list[Matches] = []
    if wire.states:
        for number in wire.states:
            if number not in STATES:
                raise InvalidSpec("filter.states", f"has {number}, which is not a state")
        states = frozenset(STATES[number] for number in wire.states)
        tests.append(lambda job: job.state in states)
    if wire.jobs:
        tests.append(_has_id(frozenset(wire.jobs)))
    for name in ("user", "job_type"):
        if getattr(wire, name):
            tests.append(_has_value(name, getattr(wire, name)))
    if wire.tenant:
        tests.append(_is_of_tenant(wire.tenant.rstrip("/")))
    if wire.name:
        if len(wire.name) > NAME_CHARS_MAX:
            raise InvalidSpec("filter.name", f"is longer than {NAME_CHARS_MAX} characters")
        pattern = re.compile(translate(wire.name.replace("[", "[[]")))
        tests.append(lambda job: pattern.match(job.spec.name) is not None)
    if wire.worker_type or wire.node:
        tests.append(_runs_on(state, wire.worker_type, wire.node))
    if wire.HasField("submitted_since"):
        since_s = seconds(wire.submitted_since)
        tests.append(lambda job: job.submitted_s >= since_s)
    if wants_ended(wire):
        ended_since_s = seconds(wire.ended_since)
        tests.append(lambda job: job.ended_s is not None and job.ended_s >= ended_since_s)
    return lambda job: all(test(job) for test in tests)


def wants_ended(wire: jobs_pb2.JobFilter) -> bool:
    """Whether the filter matches only ended jobs. These are listed from the history: the state has forgotten some."""
    return wire.ended or wire.HasField("ended_since")


def _has_id(ids: frozenset[str]) -> Matches:
    return lambda job: job.id in ids or (bool(job.spec.array) and job.id.partition("_")[0] in ids)


def _has_value(name: str, value: str) -> Matches:
    return lambda job: getattr(job.spec, name) == value


def _is_of_tenant(tenant: str) -> Matches:
    return lambda job: is_of_tenant(job.spec.tenant, tenant)


def is_of_tenant(name: str, tenant: str) -> bool:
    """Whether the tenant of this name is a certain tenant or below it; an empty `tenant` stands for all."""
    return not tenant or name == tenant or name.startswith(f"{tenant}/")


def _runs_on(state: SchedulerState, worker_type: str, node: str) -> Matches:
    def runs_there(job: Job) -> bool:
        holding = state.leases.get(job.lease or job.leaving or "")
        if holding is None:
            return False
        if worker_type and holding.bundle.worker_type != worker_type:
            return False
        return not node or node in nodes_of(holding.lease.gpus)

    return runs_there


async def in_slices(jobs: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield the jobs in slices; other tasks have a turn after each slice."""
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]
        await asyncio.sleep(0)


def candidates(state: SchedulerState, wire: jobs_pb2.JobFilter) -> list[Job]:
    """Return the jobs that may match, oldest first: those that the filter names, the unfinished jobs, or all jobs."""
    if not wire.jobs:
        unfinished_only = bool(wire.states) and not any(
            STATES.get(number) in TERMINAL for number in wire.states
        )
        return list((state.active if unfinished_only else state.jobs).values())
    names: dict[str, None] = {}
    for name in wire.jobs:
        names.update(dict.fromkeys(state.arrays.get(name, (name,))))
    return sorted([state.jobs[name] for name in names if name in state.jobs], key=lambda job: job.order)
