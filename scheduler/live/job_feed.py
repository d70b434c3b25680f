"""Which jobs each durable record changed, for all who watch; how many are in each state, and whose are unfinished.

A watcher is told names, not copies: whoever reads slowly gets each job as it is when its turn comes, and never falls
behind by more than there are jobs.
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
    """Jobs that a watcher has yet to look at, each once, oldest change first."""

    def __init__(self) -> None:
        self._jobs: dict[str, float] = {}
        self._some = asyncio.Event()

    def add(self, jobs: set[str], at_s: float) -> None:
        """These changed."""
        for job in jobs:
            self._jobs.setdefault(job, at_s)
        self._some.set()

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    async def take(self) -> dict[str, float]:
        """All that is pending, with the time of the first change; waits until there is something."""
        await self.some()
        return self.take_now()

    async def some(self) -> None:
        """Wait until something is pending."""
        await self._some.wait()

    def take_now(self) -> dict[str, float]:
        """All that is pending, which may be nothing."""
        self._some.clear()
        jobs, self._jobs = self._jobs, {}
        return jobs


class JobChanges:
    """Listens to the feed: `feed.listen(changes.hear)`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        # Called once for each job that ends, however it ends.
        self.on_end: Callable[[Job], object] = lambda job: None
        self._job_of = {name: holding.lease.job for name, holding in state.leases.items()}
        self._known_as = {job.id: job.state for job in state.jobs.values()}
        self.states: Counter[JobState] = Counter(self._known_as.values())
        self.unfinished: Counter[str] = Counter(job.spec.user for job in state.active.values())  # by user
        self.rates: dict[str, float] = {}  # steps per second by lease, between its last two reports
        self._made: dict[str, tuple[float, float]] = {}  # steps, and seconds of stepping, as reported last
        self._watchers: list[Pending] = []

    @contextmanager
    def watch(self) -> Iterator[Pending]:
        """Everything that changes from now on."""
        pending = self.pending()
        try:
            yield pending
        finally:
            self._watchers.remove(pending)

    def pending(self) -> Pending:
        """Everything that changes from now on, for somebody who never stops watching."""
        pending = Pending()
        self._watchers.append(pending)
        return pending

    def hear(self, at_s: float, facts: Sequence[f.Fact]) -> None:
        """A record is durable, and in the state."""
        changed: set[str] = set()
        for fact in facts:
            changed.update(self._changed(fact))
            if isinstance(fact, f.JobsForgotten):
                self._forget(fact.jobs)
        self._count(changed)
        if changed:
            for pending in self._watchers:
                pending.add(changed, at_s)

    def _changed(self, fact: f.Fact) -> Iterator[str]:
        job_of = self._job_of
        match fact:
            case f.JobSubmitted() | f.JobMoved():
                yield fact.job
            case f.RoundPlanned() | f.GpusFilled():
                for lease in fact.granted:
                    job_of[lease.id] = lease.job
                    yield lease.job
                names = [name for name, _ in fact.rebundled]
                if isinstance(fact, f.RoundPlanned):
                    names += fact.ended
                yield from self._known(names)
            case f.LeasesStarted():
                for name in fact.leases:
                    if name in job_of:
                        self._made[name] = (self._state.jobs[job_of[name]].steps_done, 0.0)
                yield from self._known(fact.leases)
            case f.LeasesResumed():
                yield from self._known(fact.leases)
            case f.LeaseRecalled():
                yield from self._known((fact.lease,))
            case f.ProgressMade():
                for made in fact.progress:
                    self._measure(made)
                yield from self._known([made.lease for made in fact.progress])
            case f.LeaseClosed():
                yield from self._known((fact.exit.lease,))
                for of_lease in (job_of, self.rates, self._made):
                    of_lease.pop(fact.exit.lease, None)
            case _:
                pass

    def _measure(self, made: Progress) -> None:
        steps, stepping_s = self._made.get(made.lease, (made.steps, made.stepping_s))
        if made.stepping_s > stepping_s and made.steps >= steps:
            self.rates[made.lease] = (made.steps - steps) / (made.stepping_s - stepping_s)
        self._made[made.lease] = (made.steps, made.stepping_s)

    def _known(self, leases: Sequence[str]) -> Iterator[str]:
        for lease in leases:
            job = self._job_of.get(lease)
            if job is not None:
                yield job
            if lease not in self._state.leases:
                self._job_of.pop(lease, None)

    def _forget(self, jobs: Sequence[str]) -> None:
        for name in jobs:
            state = self._known_as.pop(name, None)
            if state is not None:
                self.states[state] -= 1

    def _count(self, changed: set[str]) -> None:
        for name in changed:
            job = self._state.jobs.get(name)
            if job is None:  # forgotten in the same record
                continue
            before = self._known_as.get(name)
            if job.state is before:
                continue
            self._known_as[name] = job.state
            self.states[job.state] += 1
            if before is not None:
                self.states[before] -= 1
            self.unfinished[job.spec.user] += (not job.is_terminal) - (before is not None)
            if job.is_terminal:
                self.on_end(job)
