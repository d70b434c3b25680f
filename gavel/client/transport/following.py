"""Streams that survive a lost connection: the next call to make, and which replies are new. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gavel.client import calls
from gavel.client.calls import Call, JobFilter
from gavel.client.errors import NotFound

if TYPE_CHECKING:
    from gavel.client.results import Job, JobEvent, LogChunk


class Waiting:
    """A wait for jobs, or all jobs of arrays, to end."""

    def __init__(self, jobs: Iterable[str]) -> None:
        # The ids of jobs and arrays, as given.
        self._names = tuple(dict.fromkeys(jobs))
        self._jobs: dict[str, Job] = {}
        self._all_present = False

    def call(self) -> Call[JobEvent]:
        """Return the call for the next connection."""
        return calls.watch(JobFilter(jobs=self._names), skip_present=False)

    def take(self, event: JobEvent) -> None:
        """Record an event of the stream. Raises NotFound if one of the jobs does not exist."""
        if event.job is not None:
            self._jobs[event.job.id] = event.job
        if event.all_present:
            self._all_present = True
            present = set(self._jobs) | {job.partition("_")[0] for job in self._jobs}
            for job in self._names:
                if job not in present:
                    raise NotFound(f"there is no job '{job}'", reason="not_found")

    @property
    def is_empty(self) -> bool:
        """Whether there are no jobs to wait for."""
        return not self._names

    @property
    def is_over(self) -> bool:
        """Whether all jobs have ended."""
        return self._all_present and all(job.state.is_final for job in self._jobs.values())

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs in the order of the ids given; the jobs of an array by index."""

        def order(job: Job) -> tuple[int, int]:
            name = job.id if job.id in self._names else job.id.partition("_")[0]
            return self._names.index(name), job.array_index or 0

        return tuple(sorted(self._jobs.values(), key=order))


class Reading:
    """A reader of logs that returns each byte only once, even after lost connections."""

    def __init__(
        self,
        job: str,
        attempt: int,
        rank: int | None,
        tail: int | None,
        follow: bool,
        read: Mapping[tuple[int, int], int] = MappingProxyType({}),
    ) -> None:
        """`read`: by attempt and rank, the offset up to which the output has been read already."""
        self._job, self._attempt, self._rank = job, attempt, rank
        self._tail, self._follow = tail, follow
        self._read = dict(read)
        # The attempt and text of each notice that was returned.
        self._notices: set[tuple[int, str]] = set()

    def call(self) -> Call[LogChunk]:
        """Return the call for the next connection. It requests the tail only if nothing was read before."""
        tail = None if self._read else self._tail
        return calls.logs(
            job=self._job, attempt=self._attempt, rank=self._rank, tail_lines=tail, follow=self._follow
        )

    def new_part(self, chunk: LogChunk) -> LogChunk | None:
        """Return the part of a chunk that was not read before; None if there is none."""
        if chunk.notice:
            notice = (chunk.attempt, chunk.notice)
            if notice in self._notices:
                return None
            self._notices.add(notice)
            return chunk
        key = (chunk.attempt, chunk.rank)
        latest = max((attempt for attempt, _ in self._read), default=0)
        if key not in self._read and chunk.attempt < latest:
            # Output of an earlier attempt, from before the requested tail.
            return None
        skip = min(max(self._read.get(key, 0) - chunk.offset, 0), len(chunk.data))
        self._read[key] = max(self._read.get(key, 0), chunk.offset + len(chunk.data))
        if skip == len(chunk.data):
            return None
        return replace(chunk, offset=chunk.offset + skip, data=chunk.data[skip:]) if skip else chunk
