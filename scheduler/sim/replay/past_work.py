"""The work of jobs in a journal, their rates and the cost of starting them, as far as their leases tell.

Rules: a completed job had as much to do as it did. Rates are those that the scheduler was given; where it was given
none, those that were measured, and where a job type never ran, the mean of where it did. A job that never reported a
step takes the time that it took.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from statistics import fmean, median

from scheduler.core.facts import LeaseClosed
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import Lease
from scheduler.sim.engine.physics import CODE_NO_RATE, JobTruth
from traces.costs import Cost
from traces.throughputs import Key, Throughputs

# Steps and seconds.
Amount = tuple[float, float]
UNKNOWN_WORK = "jobs left out: nobody knows how much they had to do"
UNKNOWN_RATES = "jobs left out: their rates are not known"
UNFINISHED = "jobs that had not ended and never said how much they have to do end where they were"
UNTOLD = "jobs that told no steps take the time that they took, on every worker type"
UNSEEN = (
    "worker types on which a kind of job never ran, and of which no table tells: as fast there as elsewhere"
)
AGAIN = "attempts that failed by themselves, and others after them did not, do not fail again"


class PastWork:
    """Collects leases as they end, and derives from them the truth about each job."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        # The steps of each job when its last lease ended.
        self._steps: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        self._finished: set[str] = set()
        # The step at which a job's last attempt failed by itself.
        self._faults: dict[str, float] = {}
        self._attempts_failed: Counter[str] = Counter()
        # What each job did, by number of GPUs and worker type.
        self._measured: dict[str, dict[tuple[int, str], Amount]] = {}
        # The time without steps: of leases that ended by themselves, and of those that were stopped.
        self._starting_s: list[float] = []
        self._stopping_s: list[float] = []

    def closed(self, lease: Lease, fact: LeaseClosed) -> None:
        """Take in a lease that has ended."""
        end, job = fact.exit, lease.job
        gained = end.steps - self._steps.get(job, 0.0)
        self._steps[job] = end.steps if end.outcome in ("finished", "yielded") else end.saved
        self._ran_s[job] = self._ran_s.get(job, 0.0) + end.ran_s
        idle_s = end.ran_s - end.stepping_s
        self._faults.pop(job, None)
        if end.outcome == "finished":
            self._starting_s.append(idle_s)
            self._finished.add(job)
        elif end.outcome == "yielded" and end.stepping_s > 0:
            self._stopping_s.append(idle_s)
        elif end.outcome == "failed" and end.code != CODE_NO_RATE:
            self._faults[job] = end.steps
            self._attempts_failed[job] += 1
        if gained > 0 and end.stepping_s > 0 and len(lease.bundle.jobs) == 1:
            amounts = self._measured.setdefault(job, {})
            key = (lease.bundle.gpus, lease.bundle.worker_type)
            amounts[key] = _sum(amounts.get(key), (gained, end.stepping_s))

    @property
    def cost(self) -> Cost:
        """The usual time from a start to the first step, and from a request to stop until all was saved."""
        start_s = max(median(self._starting_s), 0.0) if self._starting_s else 0.0
        stop_s = max(median(self._stopping_s) - start_s, 0.0) if self._stopping_s else 0.0
        return Cost(round(start_s, 3), round(stop_s, 3))

    def table(
        self, rates_given: Throughputs, jobs: Iterable[tuple[str, JobSpec]], kinds: Collection[str]
    ) -> Throughputs:
        """Return the rates that were given, those measured of job types without any, and a guess at the rest."""
        known = {key[0] for key in rates_given.solo}
        measured: dict[Key, Amount] = {}
        wanted: dict[tuple[str, int], None] = {}
        for name, spec in jobs:
            job_type = type_of(name, spec)
            wanted |= dict.fromkeys((job_type, gpus) for gpus in range(spec.narrowest, spec.widest + 1))
            if job_type not in known:
                for (gpus, kind), amount in self._measured.get(name, {}).items():
                    measured[job_type, gpus, kind] = _sum(measured.get((job_type, gpus, kind)), amount)
        solo = dict(rates_given.solo) | {key: steps / time_s for key, (steps, time_s) in measured.items()}
        for job_type, gpus in wanted:
            rates = [
                solo[job_type, gpus, kind] for kind in kinds if solo.get((job_type, gpus, kind), 0.0) > 0
            ]
            for kind in kinds if rates else ():
                if (job_type, gpus, kind) not in solo:
                    solo[job_type, gpus, kind] = fmean(rates)
                    self.notes[UNSEEN] += 1
        return Throughputs(solo, rates_given.unconsolidated, rates_given.pairs, source=rates_given.source)

    def truth(
        self, name: str, spec: JobSpec, table: Throughputs, kinds: Collection[str], cost: Cost, stopped: bool
    ) -> JobTruth | None:
        """Return the truth about a job; None where too little is known. `stopped`: a user or a limit ended it."""
        done, fault = self._steps.get(name, 0.0), self._faults.get(name, math.inf)
        if name in self._finished and not done:
            self.notes[UNTOLD] += 1
            own = dict.fromkeys(kinds, 1.0)
            return JobTruth(job_type=f"job #{name}", gpus=spec.gpus, steps_total=self._ran_s[name], rates=own)
        job_type = type_of(name, spec)
        steps = done if name in self._finished else spec.steps
        if steps is None:
            steps = math.inf if stopped or fault < math.inf else done
            self.notes[UNFINISHED] += 0 < steps < math.inf
        if not steps:
            self.notes[UNKNOWN_WORK] += 1
            return None
        widths = range(spec.narrowest, spec.widest + 1)
        rates = (table.rate(job_type, gpus, kind) for gpus in widths for kind in kinds)
        if not spec.rates and not any(rate > 0 for rate in rates):
            self.notes[UNKNOWN_RATES] += 1
            return None
        if failed := self._attempts_failed[name] if fault == math.inf else 0:
            self.notes[AGAIN] += failed
        return JobTruth(
            job_type=job_type,
            gpus=spec.gpus,
            steps_total=steps,
            restart_s=cost.restart_s,
            checkpoint_s=cost.checkpoint_s,
            rates=spec.rates,
            fails_at_steps=fault,
        )


def type_of(name: str, spec: JobSpec) -> str:
    """Return the job's type, or one of its own where it has none."""
    return spec.job_type or f"job #{name}"


def _sum(before: Amount | None, more: Amount) -> Amount:
    return more if before is None else (before[0] + more[0], before[1] + more[1])
