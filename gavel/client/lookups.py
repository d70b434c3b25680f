"""Questions that take several calls: which job a name means, the jobs of an array, the queue. No I/O.

Each question is a generator: it yields the calls to make, receives their replies, and returns the answer. Both clients
ask it, one blocking, the other awaiting.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from gavel.client import calls
from gavel.client.calls import Call, JobFilter
from gavel.client.errors import Invalid, NotFound
from gavel.client.jobs.ids import array_of, is_id
from gavel.client.queue import Queue
from gavel.client.results.states import ACTIVE

if TYPE_CHECKING:
    from gavel.client.results import Job

T = TypeVar("T")
Asking = Generator[Call[Any], Any, T]

# How many jobs of a name are looked at, and how many of their ids an error lists.
NAMESAKES_MAX, NAMESAKES_SHOWN = 100, 5
# The most jobs that the scheduler lists in one call.
PAGE_JOBS_MAX = 10_000
# The most unfinished jobs that a view follows.
FOLLOWED_MAX = 500
# Several jobs in the notation of other schedulers: 3-5, 3,4 or 6_[0-2].
_SEVERAL = re.compile(r"[\d_]+[-,.:\[][\d_,\]\[:.-]*")


def id_of(job: str) -> Asking[str]:
    """Return the id of the job or array with this id or name.

    A name must be unique among the unfinished jobs and arrays; if none of these has it, among all. Raises NotFound.
    """
    if not isinstance(job, str):
        raise Invalid(f"job: must be the id or the name of a job as text, got {job!r}", field="job")
    if is_id(job):
        return job
    # An unset variable of a script must not match jobs without a name.
    if not job.strip():
        raise Invalid("the id of a job is empty", field="job")
    # The filter takes a pattern; jobs with other names are removed below.
    pattern = job.replace("*", "?")
    # The last filter also finds jobs that the scheduler has forgotten.
    for wanted in (JobFilter(states=ACTIVE), JobFilter(), JobFilter(ended=True)):
        page = yield calls.list_jobs(replace(wanted, name=pattern), NAMESAKES_MAX, "", True)
        ids = sorted({array_of(entry.id) for entry in page.jobs if entry.spec.name == job}, key=int)
        if len(ids) > 1:
            first_ids = ", ".join(ids[:NAMESAKES_SHOWN])
            raise NotFound(
                f"{len(ids)} jobs are called '{job}'; give the id of one: {first_ids}", reason="ambiguous"
            )
        if ids:
            return ids[0]
    several = "; give several jobs one by one" if _SEVERAL.fullmatch(job) else ""
    raise NotFound(f"there is no job '{job}'{several}", reason="not_found")


def ids_of(jobs: str | Iterable[str]) -> Asking[tuple[str, ...]]:
    """Return the ids of these jobs or arrays, each once."""
    ids = []
    for job in [jobs] if isinstance(jobs, str) else jobs:
        ids.append((yield from id_of(job)))
    return tuple(dict.fromkeys(ids))


def with_ids(wanted: JobFilter | None) -> Asking[JobFilter]:
    """Return the filter with the ids of the jobs that it names."""
    wanted = calls.checked_filter(wanted or JobFilter())
    return replace(wanted, jobs=(yield from ids_of(wanted.jobs))) if wanted.jobs else wanted


def members(job: str) -> Asking[tuple[Job, ...]]:
    """Return the job with this id or name, or the members of the array, by index."""
    name = yield from id_of(job)
    try:
        return ((yield calls.get(job=name)),)
    except NotFound:
        entries = yield from _listed(JobFilter(jobs=[name]), None)
        if not entries.jobs:
            raise
        return tuple(sorted(entries.jobs, key=lambda entry: entry.array_index or 0))


def queue(wanted: JobFilter | None, all_users: bool, limit: int | None) -> Asking[Queue]:
    """Return the newest jobs that match, at most `limit`.

    A filter without a user means the caller's jobs, unless `all_users` is true. A filter without states, times and jobs
    means unfinished jobs.
    """
    if limit is not None and limit < 1:
        raise Invalid(f"limit: must be at least 1, got {limit}", field="limit")
    wanted = yield from with_ids(wanted)
    if not (wanted.user or all_users or wanted.jobs):
        wanted = replace(wanted, user=(yield calls.who_am_i()).user)
    is_open = wanted.submitted_since is None and wanted.ended_since is None and not wanted.ended
    if is_open and not wanted.states and not wanted.jobs:
        wanted = replace(wanted, states=ACTIVE)
    return (yield from _listed(wanted, limit, brief=True))


def _listed(wanted: JobFilter, limit: int | None, *, brief: bool = False) -> Asking[Queue]:
    jobs: list[Job] = []
    token = ""
    while True:
        size = PAGE_JOBS_MAX if limit is None else min(limit - len(jobs), PAGE_JOBS_MAX)
        page = yield calls.list_jobs(wanted, size, token, brief)
        jobs += page.jobs
        token = page.next_page_token
        if not token or len(jobs) == limit:
            # Jobs of the history are not counted.
            total = (page.total or None) if token else len(jobs)
            return Queue(tuple(jobs), total, datetime.now(UTC), wanted)


class Followed:
    """Jobs that a view follows until all have ended: these, or the caller's unfinished ones."""

    def __init__(self, jobs: str | Iterable[str] | None) -> None:
        self._names = jobs
        self._wanted: JobFilter | None = None
        self._jobs: dict[str, Job] = {}
        self.is_over = False

    def poll(self) -> Asking[Queue]:
        """Return the jobs with their present states: the unfinished ones, and those that this view has seen before."""
        if self._wanted is None:
            yield from self._begin()
        listed = Queue((), 0, datetime.now(UTC), JobFilter())
        # A filter without jobs would select those of all users.
        if self._wanted is not None:
            listed = yield from queue(self._wanted, True, FOLLOWED_MAX)
        current = {job.id: job for job in listed}
        left = [job.id for job in self._jobs.values() if not job.state.is_final and job.id not in current]
        if left:
            current |= {job.id: job for job in (yield from _listed(JobFilter(jobs=left), None, brief=True))}
        self._jobs = {**current, **self._jobs, **current}
        self.is_over = not listed
        ended = len(self._jobs) - len(listed)
        total = None if listed.total is None else listed.total + ended
        return replace(listed, jobs=tuple(self._jobs.values()), total=total)

    def _begin(self) -> Asking[None]:
        if self._names is None:
            self._wanted = JobFilter(states=ACTIVE, user=(yield calls.who_am_i()).user)
            return
        ids = yield from ids_of(self._names)
        if not ids:
            return
        self._wanted = JobFilter(states=ACTIVE, jobs=ids)
        # Some of these jobs may have ended already.
        present = yield from _listed(JobFilter(jobs=ids), FOLLOWED_MAX, brief=True)
        for job in ids:
            if not any(job in (entry.id, array_of(entry.id)) for entry in present):
                raise NotFound(f"there is no job '{job}'", reason="not_found")
        self._jobs = {entry.id: entry for entry in present}
