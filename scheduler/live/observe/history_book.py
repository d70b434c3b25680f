"""The ended jobs in `history.db`, a row each.

Rows are for display, with one exception: if a new job depends on a job that the state has forgotten, the row tells how
the older job ended.

A row is written when a job has ended and again when its last lease is closed; writing it twice changes nothing. A row
holds the whole job in JSON, so that the same code shows jobs of the state and of the history; the other columns serve
to filter and sort. A lost file is rebuilt from the jobs that the state still has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from protos.gavel.v1 import jobs_pb2
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.wire.job_view import seconds
from scheduler.live.wire.jobs import STATES
from scheduler.model.jobs import Job, JobState
from scheduler.model.launch import JobDecoder

log = logging.getLogger(__name__)

# The most names in one query to SQLite.
NAMES_MAX = 500

_INSERT = f"INSERT OR REPLACE INTO job VALUES ({', '.join('?' * 21)})"  # noqa: S608
_PRUNE = "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE ended_s <= ? ORDER BY ended_s LIMIT ?)"
_END_TIMES = "SELECT id, ended_s FROM job WHERE id IN (MARKS)"
_JOBS = "SELECT job, nodes FROM job WHERE"
_FIND = f"{_JOBS} id IN (MARKS) UNION ALL {_JOBS} array_id IN (MARKS)"
_STATES = "SELECT id, state FROM job WHERE id IN (MARKS)"
_STATES += " UNION ALL SELECT array_id, state FROM job WHERE array_id IN (MARKS)"


class PastJob(NamedTuple):
    """An ended job, and the nodes of its attempts, latest first."""

    job: Job
    nodes: tuple[str, ...]


class PageEnd(NamedTuple):
    """The last job of a page of the history. The next page begins after it."""

    ended_s: float
    # The job's position in the order of submission (`Job.order`), to tell apart jobs that ended at the same time.
    number: int


class HistoryBook:
    """The table of ended jobs. Any thread may use it."""

    def __init__(self, file: HistoryFile) -> None:
        self._file = file

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows made by `row_of`; they are durable on return."""
        with self._file.transaction() as db:
            db.executemany(_INSERT, rows)

    def prune(self, until_s: float, limit: int) -> int:
        """Delete up to `limit` jobs that ended by this time, and return how many. SQLite reuses their space."""
        with self._file.transaction() as db:
            return db.execute(_PRUNE, (until_s, limit)).rowcount

    def outdated(self, end_times: dict[str, float]) -> list[str]:
        """Return the jobs whose row is missing or has another end time."""
        stored: dict[str, float] = {}
        for batch in _batches(end_times):
            stored.update(self._file.rows(_END_TIMES.replace("MARKS", _marks(batch)), batch))
        return [name for name, ended_s in end_times.items() if stored.get(name) != ended_s]

    def get(self, job: str) -> PastJob | None:
        """Return one job, or None."""
        rows = self._file.rows(f"{_JOBS} id = ?", (job,))
        return next(iter(_read(rows)), None)

    def find(self, names: Iterable[str]) -> list[PastJob]:
        """Return the jobs with these ids, and all jobs of arrays with these ids."""
        jobs: dict[str, PastJob] = {}
        for batch in _batches(names):
            rows = self._file.rows(_FIND.replace("MARKS", _marks(batch)), (*batch, *batch))
            jobs.update({past.job.id: past for past in _read(rows)})
        return list(jobs.values())

    def final_states(self, names: Iterable[str]) -> dict[str, JobState]:
        """Return the final states of the jobs and arrays that have rows. An array is completed if all its jobs are."""
        states: dict[str, JobState] = {}
        for batch in _batches(names):
            for name, state in self._file.rows(_STATES.replace("MARKS", _marks(batch)), (*batch, *batch)):
                if states.get(name, JobState.COMPLETED) is JobState.COMPLETED:
                    states[name] = JobState(state)
        return states

    def page(self, job_filter: jobs_pb2.JobFilter, before: PageEnd | None, size: int) -> list[PastJob]:
        """Return up to `size` jobs that match and ended before `before`, the latest end first."""
        conditions, values = _conditions(job_filter)
        if before is not None:
            conditions.append("(ended_s, number) < (?, ?)")
            values += before
        where = " AND ".join(conditions) or "1"
        query = f"{_JOBS} {where} ORDER BY ended_s DESC, number DESC LIMIT ?"
        return _read(self._file.rows(query, (*values, size)))


def row_of(job: Job, nodes: Sequence[str]) -> tuple[Any, ...]:
    """Return the row of a job that has ended."""
    spec = job.spec
    return (
        *(job.id, job.id.partition("_")[0] if spec.array else "", job.order),
        *(spec.name, spec.user, spec.tenant, spec.job_type),
        *(job.state.value, job.why, job.last_exit),
        *(job.submitted_s, job.started_s, job.ended_s, job.run_s, job.cost_usd),
        *(job.attempt, job.preemptions, job.failures),
        *(_lines(sorted(job.time_s)), _lines(nodes), msgspec.json.encode(job).decode()),
    )


def page_end(job: Job) -> PageEnd:
    """Return the end of a page whose last job is this one."""
    return PageEnd(job.ended_s or 0.0, job.order)


_decoder = JobDecoder(msgspec.json, Job)


def _read(rows: Iterable[tuple[str, str]]) -> list[PastJob]:
    jobs = []
    for job, nodes in rows:
        try:
            jobs.append(PastJob(_decoder.decode(job), tuple(nodes.split("\n")) if nodes else ()))
        except (msgspec.DecodeError, ValueError) as error:
            log.error("a row of history.db cannot be read: %(error)s", {"error": error})
    return jobs


def _conditions(job_filter: jobs_pb2.JobFilter) -> tuple[list[str], list[Any]]:
    """Return a filter as SQL conditions and their values. The caller has validated it with `matcher`."""
    conditions: list[str] = []
    values: list[Any] = []
    if job_filter.states:
        conditions.append(f"state IN ({_marks(job_filter.states)})")
        values += [STATES[number].value for number in job_filter.states]
    if job_filter.jobs:
        conditions.append(f"(id IN ({_marks(job_filter.jobs)}) OR array_id IN ({_marks(job_filter.jobs)}))")
        values += [*job_filter.jobs, *job_filter.jobs]
    for column in ("user", "job_type"):
        if getattr(job_filter, column):
            conditions.append(f"{column} = ?")
            values.append(getattr(job_filter, column))
    if job_filter.tenant:
        tenant = job_filter.tenant.rstrip("/")
        conditions.append("(tenant = ? OR substr(tenant, 1, ?) = ?)")
        values += [tenant, len(tenant) + 1, f"{tenant}/"]
    if job_filter.name:
        conditions.append("name GLOB ?")
        values.append(job_filter.name.replace("[", "[[]"))
    for column, value in (("worker_types", job_filter.worker_type), ("nodes", job_filter.node)):
        if value:
            conditions.append(f"instr(char(10) || {column} || char(10), ?)")
            values.append(f"\n{value}\n")
    for column, field in (("submitted_s", "submitted_since"), ("ended_s", "ended_since")):
        if job_filter.HasField(field):
            conditions.append(f"{column} >= ?")
            values.append(seconds(getattr(job_filter, field)))
    return conditions, values


def _lines(words: Iterable[str]) -> str:
    return "\n".join(words)


def _marks(names: Sequence[Any]) -> str:
    """Return a placeholder for each name in a query."""
    return ", ".join("?" * len(names))


def _batches(names: Iterable[str]) -> Iterable[list[str]]:
    """Split names for queries with up to NAMES_MAX of them."""
    all_names = list(names)
    return (all_names[start : start + NAMES_MAX] for start in range(0, len(all_names), NAMES_MAX))
