"""The truth about jobs, from which the scheduler's figures may differ: rates, lengths, and times to start and save.

Rules: a rate comes from a table, and is multiplied by a noise that depends only on seed, job and attempt; two jobs on
the same GPUs run at the rates of the pair while both do steps; a gang on more nodes than it needs runs at the
unconsolidated rate.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from statistics import NormalDist

import msgspec

from scheduler.model.lease import Lease
from traces.throughputs import Throughputs

# The exit code of a job that was placed where its rate is 0: it does not fit there.
CODE_NO_RATE = 78
# The exit code of a job that reaches its `fails_at_steps`.
CODE_FAULT = 1


class JobTruth(msgspec.Struct, frozen=True, kw_only=True):
    """The truth about one job."""

    job_type: str
    gpus: int = 1
    # The CPUs that the job asked for. They are its fair share if that of its GPUs is less.
    cpus: float = 0.0
    # inf: the job runs until it is stopped.
    steps_total: float = math.inf
    # The time from the start of all its processes to its first step.
    restart_s: float = 0.0
    # How long the job takes to save after it is asked to stop.
    checkpoint_s: float = 0.0
    # The job saves each time it has done steps for this long, and when it is asked to stop.
    save_every_s: float = math.inf
    # Steps per second by worker type. They replace the rates of the table while the job runs on `gpus` GPUs.
    rates: dict[str, float] = {}
    # Steps per second by worker type and number of GPUs, of a job with plans. Only these ways of running count then.
    planned: dict[tuple[str, int], float] = {}
    # The step at which every attempt of the job fails.
    fails_at_steps: float = math.inf
    # Whether the job ignores requests to stop, so that it has to be killed.
    ignores_stop: bool = False

    @property
    def runs_to(self) -> float:
        """The step at which the job ends by itself."""
        return self.steps_total if self.steps_total < self.fails_at_steps else self.fails_at_steps


class Physics:
    """The true rates of jobs. The world sets the truth about each job; nothing here reads the scheduler's state."""

    def __init__(
        self,
        table: Throughputs,
        *,
        seed: int = 0,
        noise_sigma: float = 0.0,
        always_consolidated: bool = False,
        fixed_cpus: bool = False,
    ) -> None:
        self.table = table
        self.seed = seed
        self.noise_sigma = noise_sigma
        self.always_consolidated = always_consolidated
        self.fixed_cpus = fixed_cpus
        self._truths: dict[str, JobTruth] = {}

    def set_truth(self, job: str, truth: JobTruth) -> None:
        """Set, or replace, the truth about a job."""
        self._truths[job] = truth

    def truth(self, job: str) -> JobTruth:
        """Return the truth about a job. Raises LookupError if it was never set."""
        try:
            return self._truths[job]
        except KeyError:
            raise LookupError(f"job {job!r} started without a call of Physics.set_truth for it") from None

    def rate(self, lease: Lease, worker_type: str, consolidated: bool, beside: Lease | None = None) -> float:
        """Return the steps per second of a lease's job, alone or beside another lease's job; 0 if it does not fit."""
        truth = self._truths[lease.job]
        gpus = len(lease.gpus)
        key = (truth.job_type, gpus, worker_type)
        alone = (
            truth.planned.get((worker_type, gpus), 0.0) if truth.planned else self.table.solo.get(key, 0.0)
        )
        rate = alone
        if truth.rates and gpus == truth.gpus:
            rate = truth.rates.get(worker_type, rate)
        if beside is not None:
            other = self._truths[beside.job]
            pair = self.table.pairs.get((worker_type, truth.job_type, gpus, other.job_type, len(beside.gpus)))
            rate = 0.0 if pair is None else pair[0] * (rate / alone if alone > 0.0 else 1.0)
        if not consolidated and gpus > 1 and not (self.always_consolidated or truth.planned):
            spread = self.table.unconsolidated.get(key)
            # Without a measured rate the job runs as if it were consolidated.
            if spread is not None and alone > 0.0:
                rate *= spread / alone
        return rate * self.noise(lease.job, lease.attempt) if self.noise_sigma else rate

    def noise(self, job: str, attempt: int) -> float:
        """Return the noise of an attempt: lognormal with mean 1, and the same in all runs with this seed."""
        digest = blake2b(f"{self.seed}:{attempt}:{job}".encode(), digest_size=8).digest()
        chance = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
        sigma = self.noise_sigma
        normal = NormalDist().inv_cdf(min(max(chance, 1e-15), 1 - 1e-15))
        return math.exp(sigma * normal - sigma * sigma / 2)
