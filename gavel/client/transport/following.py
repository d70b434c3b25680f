"""Streams that outlive their connection: what to ask for again, and what of the answer is new. Nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gavel.client import calls
from gavel.client.calls import Call, JobFilter
from gavel.client.errors import NotFound
from gavel.client.results import Job, JobEvent, LogChunk


class Waiting:
    """For jobs, or all jobs of arrays, to end."""

    def __init__(self, jobs: Iterable[str]) -> None:
        self._wanted = tuple(dict.fromkeys(jobs))
        self._seen: dict[str, Job] = {}
        self._all_present = False

    def call(self) -> Call[JobEvent]:
        """To ask for, at the beginning and whenever the connection was lost."""
        return calls.watch(JobFilter(jobs=self._wanted), skip_present=False)

    def hear(self, event: JobEvent) -> None:
        """NotFound where one of them does not exist."""
        if event.job is not None:
            self._seen[event.job.id] = event.job
        if event.all_present:
            self._all_present = True
            there = set(self._seen) | {job.partition("_")[0] for job in self._seen}
            for job in self._wanted:
                if job not in there:
                    raise NotFound(f"there is no job '{job}'", reason="not_found")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return not self._wanted

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._all_present and all(job.state.is_final for job in self._seen.values())

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All of them, in the order asked for; members of an array by index."""

        def order(job: Job) -> tuple[int, int]:
            name = job.id if job.id in self._wanted else job.id.partition("_")[0]
            return self._wanted.index(name), job.array_index or 0

        return tuple(sorted(self._seen.values(), key=order))


class Reading:
    """Logs, each byte once, however often the connection is lost."""

    def __init__(self, job: str, attempt: int, rank: int | None, tail: int | None, follow: bool) -> None:
        self._job, self._attempt, self._rank = job, attempt, rank
        self._tail, self._follow = tail, follow
        self._read: dict[tuple[int, int], int] = {}  # attempt and rank → how far
        self._notices: set[tuple[int, str]] = set()

    def call(self) -> Call[LogChunk]:
        """To ask for, at the beginning and whenever the connection was lost."""
        tail = None if self._read else self._tail
        return calls.logs(self._job, self._attempt, self._rank, tail, self._follow)

    def fresh(self, chunk: LogChunk) -> LogChunk | None:
        """What of a chunk was not seen before."""
        if chunk.notice:
            said = (chunk.attempt, chunk.notice)
            if said in self._notices:
                return None
            self._notices.add(said)
            return chunk
        key = (chunk.attempt, chunk.rank)
        latest = max((attempt for attempt, _ in self._read), default=0)
        if key not in self._read and chunk.attempt < latest:
            return None  # from before the last lines that were asked for
        skip = min(max(self._read.get(key, 0) - chunk.offset, 0), len(chunk.data))
        self._read[key] = max(self._read.get(key, 0), chunk.offset + len(chunk.data))
        if skip == len(chunk.data):
            return None
        return replace(chunk, offset=chunk.offset + skip, data=chunk.data[skip:]) if skip else chunk
