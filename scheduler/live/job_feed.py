"""The jobs that each durable record changed, for watchers. Also counts jobs by state, and unfinished jobs by user.

A watcher receives names, not copies: a slow watcher sees each job as it is at the time of reading, and its backlog is
never longer than the list of jobs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.core import facts as f
from scheduler.core.messages import Progress
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job, JobState


class Pending:
    """The changed jobs that a watcher has yet to read, each once, oldest change first."""

    def __init__(self) -> None:
        # Job → the time of its first change.
        self._jobs: dict[str, float] = {}
        self._not_empty = asyncio.Event()

    def add(self, jobs: set[str], at_s: float) -> None:
        """Add jobs that changed at this time. A job that is pending already keeps its earlier time."""
        for job in jobs:
            self._jobs.setdefault(job, at_s)
        self._not_empty.set()

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    async def take(self) -> dict[str, float]:
        """Wait until jobs are pending, then remove and return them, each with the time of its first change."""
        await self.wait()
        with self.taking() as jobs:
            return jobs

    async def wait(self) -> None:
        """Wait until a job is pending."""
        await self._not_empty.wait()

    @contextmanager
    def taking(self) -> Iterator[dict[str, float]]:
        """Remove and yield the jobs that are pending now. If the block raises an error, they are pending again."""
        self._not_empty.clear()
        jobs, self._jobs = self._jobs, {}
        try:
            yield jobs
        except BaseException:
            self._jobs = jobs | {name: at_s for name, at_s in self._jobs.items() if name not in jobs}
            self._not_empty.set()
            raise


class JobChanges:
    """The changes of jobs, read from the feed: `feed.listen(changes.listen)`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        # Called once for each job that ends, however it ends.
        self.on_end: Callable[[Job], object] = lambda job: None
        # Lease → its job.
        self._job_of = {name: holding.lease.job for name, holding in state.leases.items()}
        # Job → the state in which it was last counted.
        self._state_of = {job.id: job.state for job in state.jobs.values()}
        # How many jobs are in each state.
        self.states: Counter[JobState] = Counter(self._state_of.values())
        # How many unfinished jobs each user has.
        self.unfinished: Counter[str] = Counter(job.spec.user for job in state.active.values())
        # Steps per second by lease, between the last two reports of the lease.
        self.rates: dict[str, float] = {}
        # Steps and seconds of stepping in the last report of each lease.
        self._last_steps: dict[str, tuple[float, float]] = {}
        self._watchers: list[Pending] = []

    @contextmanager
    def watch(self) -> Iterator[Pending]:
        """Yield the pending jobs of a new watcher, which follows changes from now until the context ends."""
        pending = self.pending()
        try:
            yield pending
        finally:
            self._watchers.remove(pending)

    def pending(self) -> Pending:
        """Return the pending jobs of a new watcher that follows changes from now on and never stops."""
        pending = Pending()
        self._watchers.append(pending)
        return pending

    def listen(self, at_s: float, facts: Sequence[f.Fact]) -> None:
        """Add the jobs that a durable record changed to the pending jobs of each watcher, and update the counts.

        The record was applied to the state before this call.
        """
        changed: set[str] = set()
        for fact in facts:
            changed.update(self._jobs_changed_by(fact))
            if isinstance(fact, f.JobsForgotten):
                self._forget(fact.jobs)
        self._count(changed)
        if changed:
            for pending in self._watchers:
                pending.add(changed, at_s)

    def _jobs_changed_by(self, fact: f.Fact) -> Iterator[str]:
        job_of = self._job_of
        match fact:
            case f.JobSubmitted() | f.JobMoved() | f.JobUpdated():
                yield fact.job
            case f.RoundPlanned() | f.GpusFilled():
                for lease in fact.granted:
                    job_of[lease.id] = lease.job
                    yield lease.job
                names = [name for name, _ in fact.rebundled]
                if isinstance(fact, f.RoundPlanned):
                    names += fact.ended
                yield from self._jobs_of(names)
            case f.LeasesStarted():
                for name in fact.leases:
                    if name in job_of:
                        self._last_steps[name] = (self._state.jobs[job_of[name]].steps_done, 0.0)
                yield from self._jobs_of(fact.leases)
            case f.LeasesResumed():
                yield from self._jobs_of(fact.leases)
            case f.LeaseRecalled():
                yield from self._jobs_of((fact.lease,))
            case f.ProgressMade():
                for progress in fact.progress:
                    self._measure(progress)
                yield from self._jobs_of([progress.lease for progress in fact.progress])
            case f.LeaseClosed():
                yield from self._jobs_of((fact.exit.lease,))
                for of_lease in (job_of, self.rates, self._last_steps):
                    of_lease.pop(fact.exit.lease, None)
            case _:
                pass

    def _measure(self, progress: Progress) -> None:
        """Update the rate of a lease."""
        lease, reported = progress.lease, (progress.steps, progress.stepping_s)
        steps, stepping_s = self._last_steps.get(lease, reported)
        if progress.stepping_s > stepping_s and progress.steps >= steps:
            self.rates[lease] = (progress.steps - steps) / (progress.stepping_s - stepping_s)
        self._last_steps[lease] = reported

    def _jobs_of(self, leases: Sequence[str]) -> Iterator[str]:
        """Yield the jobs of these leases. A lease that the state no longer has is then forgotten."""
        for lease in leases:
            job = self._job_of.get(lease)
            if job is not None:
                yield job
            if lease not in self._state.leases:
                self._job_of.pop(lease, None)

    def _forget(self, jobs: Sequence[str]) -> None:
        for name in jobs:
            state = self._state_of.pop(name, None)
            if state is not None:
                self.states[state] -= 1

    def _count(self, changed: set[str]) -> None:
        for name in changed:
            job = self._state.jobs.get(name)
            # A later fact of this record may have made the state forget the job.
            if job is None:
                continue
            old_state = self._state_of.get(name)
            if job.state is old_state:
                continue
            self._state_of[name] = job.state
            self.states[job.state] += 1
            if old_state is not None:
                self.states[old_state] -= 1
            self.unfinished[job.spec.user] += (not job.is_terminal) - (old_state is not None)
            if job.is_terminal:
                self.on_end(job)
