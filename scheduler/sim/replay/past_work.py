"""The work of the jobs in a journal, their rates and the costs of starting and stopping, derived from their leases.

Rules: the work of a completed job is the steps that it did. Rates are those given to the scheduler; for a job type
without any, those measured; on worker types where it never ran, the mean of its other rates. A job that completed
without reporting a step takes as long as it ran in the journal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, median

from scheduler.core.facts import JobMeasured, LeaseClosed
from scheduler.model.jobs import JobSpec
from scheduler.model.lease import Lease
from scheduler.model.measured import TIME_MAX_S
from scheduler.sim.engine.physics import CODE_NO_RATE, JobTruth
from traces.costs import Cost
from traces.throughputs import Key, Throughputs

# Steps, and the seconds that they took.
Amount = tuple[float, float]
UNKNOWN_WORK = "jobs left out, because their work is unknown"
UNKNOWN_RATES = "jobs left out, because their rates are unknown"
UNFINISHED = "unfinished jobs of unknown work, which end at the steps that they had reached"
NO_STEPS = "jobs that reported no steps, which take as long as they took, on every worker type"
GUESSED_RATES = "rates of a job type on a worker type, guessed as the mean of its other rates"
NOT_REPEATED = "failed attempts that are not repeated, because a later attempt did not fail"


class PastWork:
    """Collects leases that ended, and derives the truth about each job from them."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        # The steps of each job when its last lease ended.
        self._steps: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        self._finished: set[str] = set()
        # The step at which a job's last attempt failed by its own fault.
        self._faults: dict[str, float] = {}
        self._attempts_failed: Counter[str] = Counter()
        # By job, number of GPUs and worker type: the steps done, and their seconds.
        self._measured: dict[str, dict[tuple[int, str], Amount]] = {}
        # The seconds without steps of each lease whose job finished, and of each lease that was stopped.
        self._starting_s: list[float] = []
        self._stopping_s: list[float] = []
        # By job: what it measured about itself last.
        self._values: dict[str, dict[str, float]] = {}

    def add(self, lease: Lease, fact: LeaseClosed) -> None:
        """Add a lease that has ended."""
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

    def add_measured(self, fact: JobMeasured) -> None:
        """Add what a job has measured about itself. Of a gang, the slowest node counts."""
        own = self._values.setdefault(fact.job, {})
        for key, value in fact.values.items():
            own[key] = max(value, own.get(key, 0.0)) if fact.node else value

    def cost_of(self, job: str) -> Cost | None:
        """Return the times that a job has measured itself; None unless it has measured both."""
        values = self._values.get(job, {})
        if not {"start_s", "final_save_s"} <= values.keys():
            return None
        start_s, save_s = values["start_s"] + values.get("load_s", 0.0), values["final_save_s"]
        return Cost(min(start_s, TIME_MAX_S), min(save_s, TIME_MAX_S))

    @property
    def cost(self) -> Cost:
        """The usual time from a start to the first step, and the usual time to save after being asked to stop."""
        start_s = max(median(self._starting_s), 0.0) if self._starting_s else 0.0
        stop_s = max(median(self._stopping_s) - start_s, 0.0) if self._stopping_s else 0.0
        return Cost(round(start_s, 3), round(stop_s, 3))

    def table(
        self, rates_given: Throughputs, jobs: Iterable[tuple[str, JobSpec]], kinds: Collection[str]
    ) -> Throughputs:
        """Return the given rates, the measured rates of job types without given ones, and guesses for the rest."""
        types_given = {key[0] for key in rates_given.solo}
        measured: dict[Key, Amount] = {}
        # Every job type and number of GPUs, in a set that keeps its order.
        widths: dict[tuple[str, int], None] = {}
        for name, spec in jobs:
            if spec.plans:
                continue
            job_type = type_of(name, spec)
            widths |= dict.fromkeys((job_type, gpus) for gpus in spec.widths(spec.widest))
            if job_type not in types_given:
                for (gpus, kind), amount in self._measured.get(name, {}).items():
                    measured[job_type, gpus, kind] = _sum(measured.get((job_type, gpus, kind)), amount)
        solo = dict(rates_given.solo) | {key: steps / time_s for key, (steps, time_s) in measured.items()}
        for job_type, gpus in widths:
            rates = [
                solo[job_type, gpus, kind] for kind in kinds if solo.get((job_type, gpus, kind), 0.0) > 0
            ]
            for kind in kinds if rates else ():
                if (job_type, gpus, kind) not in solo:
                    solo[job_type, gpus, kind] = fmean(rates)
                    self.notes[GUESSED_RATES] += 1
        return Throughputs(solo, rates_given.unconsolidated, rates_given.pairs, source=rates_given.source)

    def truth(
        self, name: str, spec: JobSpec, table: Throughputs, kinds: Collection[str], cost: Cost, stopped: bool
    ) -> JobTruth | None:
        """Return the truth about a job; None if too little is known. `stopped`: a user or a limit ended the job."""
        done, fault = self._steps.get(name, 0.0), self._faults.get(name, math.inf)
        if name in self._finished and not done:
            self.notes[NO_STEPS] += 1
            # Each second that the job ran counts as a step.
            rates_of_1 = dict.fromkeys(kinds, 1.0)
            return JobTruth(
                job_type=f"job #{name}", gpus=spec.gpus, steps_total=self._ran_s[name], rates=rates_of_1
            )
        job_type = type_of(name, spec)
        steps = done if name in self._finished else spec.steps
        if steps is None:
            steps = math.inf if stopped or fault < math.inf else done
            self.notes[UNFINISHED] += 0 < steps < math.inf
        if not steps:
            self.notes[UNKNOWN_WORK] += 1
            return None
        widths = spec.widths(spec.widest)
        rates = (table.rate(job_type, gpus, kind) for gpus in widths for kind in kinds)
        if not (spec.rates or spec.plans) and not any(rate > 0 for rate in rates):
            self.notes[UNKNOWN_RATES] += 1
            return None
        if failed := self._attempts_failed[name] if fault == math.inf else 0:
            self.notes[NOT_REPEATED] += failed
        return JobTruth(
            job_type=job_type,
            gpus=spec.gpus,
            cpus=spec.cpus or 0.0,
            steps_total=steps,
            restart_s=cost.restart_s,
            checkpoint_s=cost.checkpoint_s,
            rates=spec.rates,
            planned=_planned(self._measured.get(name, {}), job_type, spec, table),
            fails_at_steps=fault,
        )


def type_of(name: str, spec: JobSpec) -> str:
    """Return the job's type, or a type of its own if it has none."""
    return spec.job_type or f"job #{name}"


def _planned(
    amounts: Mapping[tuple[int, str], Amount], job_type: str, spec: JobSpec, table: Throughputs
) -> dict[tuple[str, int], float]:
    """Return the rate of each plan of a job, by worker type and GPUs: of the table, or measured, or predicted."""
    measured = {(kind, gpus): steps / time_s for (gpus, kind), (steps, time_s) in amounts.items()}
    rates = {}
    for plan in spec.plans:
        known = table.plans.get((job_type, plan.gpus, plan.worker_type))
        way = (plan.worker_type, plan.gpus)
        rates[way] = measured.get(way, plan.rate) if known is None else known.rate
    return rates


def _sum(before: Amount | None, more: Amount) -> Amount:
    return more if before is None else (before[0] + more[0], before[1] + more[1])
