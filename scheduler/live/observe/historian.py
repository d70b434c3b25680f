"""Keeps `history.db`, and has the core forget the jobs in it, so that memory and snapshots stay small and starts quick.

A thread writes ended jobs soon after their facts are durable. From time to time, the core is asked to forget the jobs
that ended more than `keep_jobs_s` ago, a thousand at a time. Their rows must be durable and their GPU time booked, so
nothing is forgotten as long as the file cannot be written. Then the core forgets the keys of submissions that are older
than `keep_keys_s` and whose jobs it has forgotten. Rows older than `keep_history_s` are deleted. Leases of the past are
the subject of `timeline`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Forget
from scheduler.live.config import Keeping
from scheduler.live.data.attempts import Attempts
from scheduler.live.data.usage import Usage
from scheduler.live.feed import Feed
from scheduler.live.job_feed import JobChanges
from scheduler.live.observe.history_book import HistoryBook, PageEnd, PastJob, row_of
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.job_filter import in_slices
from scheduler.live.observe.past import Past
from scheduler.live.observe.timeline import Timeline, cannot_be_written
from scheduler.live.threads import in_thread
from scheduler.live.world import LiveWorld
from scheduler.model.jobs import Job, JobState

log = logging.getLogger(__name__)

# How many jobs are encoded before other tasks have their turn, how many are written at once, and how many are
# forgotten at once.
SLICE, BATCH, FORGET_MAX = 100, 1000, 1000


class Historian:
    """The history. `write_ended`, `forget`, `prune_leases` and `timeline.write` have to be called in loops."""

    def __init__(
        self,
        world: LiveWorld,
        feed: Feed,
        changes: JobChanges,
        path: Path,
        attempts: Attempts,
        usage: Usage,
        keeping: Keeping,
    ) -> None:
        """Open the file at `path`, and complete it from the journal."""
        self._world = world
        self._file = HistoryFile(path)
        self.book = HistoryBook(self._file)
        self.timeline = Timeline(self._file, feed.journal, world.state, keeping.snapshot_facts)
        feed.listen(self.timeline.listen)
        self.past = Past(self._file)
        self._attempts = attempts
        self._usage = usage
        self._keeping = keeping
        self._pending = changes.pending()
        self._writing = asyncio.Lock()
        # Whether the book has the jobs of the state that ended before the start.
        self._is_complete = False
        # For operators: why ended jobs cannot be written now; empty: they can.
        self._trouble = ""

    # Writing.

    async def write_ended(self) -> None:
        """Wait until a job has changed, and write the jobs that have ended. The first call does not wait."""
        if self._is_complete:
            await self._pending.wait()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Write every job that has ended by now."""
        async with self._writing:
            try:
                await self._write()
            except sqlite3.Error as error:
                self._trouble = cannot_be_written(error)
                raise
            self._trouble = ""

    async def _write(self) -> None:
        if not self._is_complete:
            await self._add_missing()
            self._is_complete = True
        with self._pending.taking() as pending:
            names = list(pending)
            for start in range(0, len(names), BATCH):
                rows = await self._rows(names[start : start + BATCH])
                if rows:
                    await in_thread(partial(self.book.add, rows))

    async def _rows(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = []
        async for batch in in_slices(names, SLICE):
            jobs = [job for name in batch if (job := self._world.state.jobs.get(name)) is not None]
            rows += [row_of(job, self.nodes_of(job)) for job in jobs if job.is_terminal]
        return rows

    async def _add_missing(self) -> None:
        """Queue the ended jobs that the book lacks after a crash or after the loss of the file."""
        async for jobs in in_slices([job for job in self._world.state.jobs.values() if job.is_terminal]):
            outdated = await in_thread(partial(self.book.outdated, _end_times(jobs)))
            self._pending.add(set(outdated), self._world.now_s())

    # Forgetting.

    async def forget(self) -> None:
        """Have the core forget the jobs and keys that have been kept long enough, and delete old rows."""
        keep_s, state = self._keeping.keep_jobs_s, self._world.state
        # The rows of forgotten jobs must outlive this process.
        if not keep_s or self._file.is_temporary:
            return
        await self._usage.catch_up()
        await self.catch_up()
        until_s = self._world.now_s() - keep_s
        old: list[str] = []
        async for jobs in in_slices(list(state.jobs.values())):
            old += [job.id for job in jobs if job.ended_s is not None and job.ended_s <= until_s]
        before = len(state.jobs)
        async for names in in_slices(old, FORGET_MAX):
            await self._ask(Forget(jobs=tuple(await self._forgettable(names))))
        if before > len(state.jobs):
            log.info("ended jobs that only history.db has now: %(jobs)d", {"jobs": before - len(state.jobs)})
        until_s = self._world.now_s() - self._keeping.keep_keys_s
        async for requests in in_slices(list(state.requests.items())):
            keys = [
                key
                for key, request in requests
                if request.at_s <= until_s and not any(job in state.jobs for job in request.jobs)
            ]
            await self._ask(Forget(keys=tuple(keys)))
        if self._keeping.keep_history_s:
            until_s = self._world.now_s() - self._keeping.keep_history_s
            while await in_thread(partial(self.book.prune, until_s, BATCH)) == BATCH:
                pass

    async def prune_leases(self) -> None:
        """Delete the leases that have been kept long enough."""
        if self._keeping.keep_leases_s:
            await self.timeline.prune(self._world.now_s() - self._keeping.keep_leases_s)

    async def finish(self) -> None:
        """Write everything that is not written yet, before `close`."""
        await self.catch_up()
        await self.timeline.write(at_end=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def warnings(self) -> Iterator[str]:
        """Yield warnings for operators."""
        if self._file.warning:
            yield self._file.warning
        # Often neither jobs nor leases can be written.
        yield from dict.fromkeys((*filter(None, [self._trouble]), *self.timeline.warnings()))

    async def _forgettable(self, names: Sequence[str]) -> list[str]:
        """Return the jobs among these whose rows are final and durable, and whose GPU time is booked."""
        jobs = [
            job
            for name in names
            if (job := self._world.state.jobs.get(name)) is not None
            and job.lease is job.leaving is None
            and name not in self._pending
            and name not in self._usage.pending
        ]
        async with self._writing:
            outdated = set(await in_thread(partial(self.book.outdated, _end_times(jobs))))
        self._pending.add(outdated, self._world.now_s())
        return [job.id for job in jobs if job.id not in outdated]

    async def _ask(self, message: Forget) -> None:
        """Send a message to the core and wait until it is durable, so that only one message at a time is handled."""
        if message.jobs or message.keys:
            done = asyncio.Event()
            # If the core fails on the message, the next `forget` asks again.
            self._world.send(message, done.set, lambda why: done.set())
            await done.wait()

    # Reading.

    def nodes_of(self, job: Job) -> tuple[str, ...]:
        """Return the nodes of a job's attempts, latest first."""
        if job.started_s is None:
            return ()
        attempts = reversed(self._attempts.of(job.id))
        return tuple(dict.fromkeys(node for attempt in attempts for node in attempt.nodes))

    async def get(self, job: str) -> PastJob | None:
        """Return a job of the history, or None."""
        return await in_thread(partial(self.book.get, job))

    async def find(self, names: Iterable[str]) -> list[PastJob]:
        """Return the jobs of these ids and arrays that the state has forgotten."""
        state = self._world.state
        past = await in_thread(partial(self.book.find, list(names)))
        return [entry for entry in past if entry.job.id not in state.jobs]

    async def final_states(self, names: Iterable[str]) -> dict[str, JobState]:
        """Return the final states of these jobs and arrays, as far as the history has them and the state does not."""
        state = self._world.state
        unknown = [name for name in names if name not in state.jobs]
        return await in_thread(partial(self.book.final_states, unknown)) if unknown else {}

    async def page(self, job_filter: jobs_pb2.JobFilter, before: PageEnd | None, size: int) -> list[PastJob]:
        """Return a page of ended jobs, including those that are still in the state; the latest end first."""
        await self.catch_up()
        past = await in_thread(partial(self.book.page, job_filter, before, size))
        return [entry for entry in past if entry.job.id not in self._world.state.active]


def _end_times(jobs: Iterable[Job]) -> dict[str, float]:
    return {job.id: job.ended_s for job in jobs if job.ended_s is not None}
