"""What is true of jobs and machines, whatever the scheduler believes: how fast, how far, how long to start.

Rules: rates come from a table, times noise that belongs to (seed, job, attempt); two jobs on the same GPUs run
at the rates of the pair while both do steps; a gang on more nodes than it needs runs at the unconsolidated rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from statistics import NormalDist
from typing import Protocol

import msgspec

from scheduler.model.lease import Lease

CODE_NO_RATE = 78  # exit code of a job that was placed where its rate is 0: it does not fit there
CODE_FAULT = 1  # exit code of a job at its `fails_at_steps`


class Rates(Protocol):
    """What is needed of traces.throughputs.Throughputs."""

    @property
    def solo(self) -> Mapping[tuple[str, int, str], float]:
        """Steps per second by job type, GPUs and worker type."""

    @property
    def unconsolidated(self) -> Mapping[tuple[str, int, str], float]:
        """The same, spread over more nodes than need be."""

    @property
    def pairs(self) -> Mapping[tuple[str, str, int, str, int], tuple[float, float]]:
        """Rates of both by worker type and twice job type and GPUs."""


class JobTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of one job."""

    job_type: str
    gpus: int = 1
    steps_total: float = math.inf  # inf: runs until it is stopped
    restart_s: float = 0.0  # from the start of all its processes to the first step
    checkpoint_s: float = 0.0  # from being asked to stop to having saved
    save_every_s: float = math.inf  # of stepping; besides, it saves when asked to stop
    rates: dict[str, float] = {}  # by worker type at `gpus`, instead of the table's
    fails_at_steps: float = math.inf  # a fault of its own, in every attempt
    ignores_stop: bool = False  # until it is killed

    @property
    def runs_to(self) -> float:
        """The step at which its processes end by themselves."""
        return self.steps_total if self.steps_total < self.fails_at_steps else self.fails_at_steps


class Physics:
    """Rates as they are. The world tells it of every job; nothing here reads the scheduler's state."""

    def __init__(
        self, table: Rates, *, seed: int = 0, noise_sigma: float = 0.0, always_consolidated: bool = False
    ) -> None:
        self.table = table
        self.seed = seed
        self.noise_sigma = noise_sigma
        self.always_consolidated = always_consolidated
        self._truths: dict[str, JobTruth] = {}

    def know(self, job: str, truth: JobTruth) -> None:
        """This is what is true of a job."""
        self._truths[job] = truth

    def truth(self, job: str) -> JobTruth:
        """What is true of a job; LookupError where nobody said."""
        try:
            return self._truths[job]
        except KeyError:
            raise LookupError(f"job {job!r} was started, but nobody told its truth: Physics.know") from None

    def rate(self, lease: Lease, worker_type: str, consolidated: bool, beside: Lease | None = None) -> float:
        """Steps per second of the job under a lease, alone or beside another; 0 where it does not fit."""
        truth = self._truths[lease.job]
        gpus = len(lease.gpus)
        key = (truth.job_type, gpus, worker_type)
        alone = self.table.solo.get(key, 0.0)
        rate = alone
        if truth.rates and gpus == truth.gpus:
            rate = truth.rates.get(worker_type, rate)
        if beside is not None:
            other = self._truths[beside.job]
            pair = self.table.pairs.get((worker_type, truth.job_type, gpus, other.job_type, len(beside.gpus)))
            rate = 0.0 if pair is None else pair[0] * (rate / alone if alone > 0.0 else 1.0)
        if not consolidated and gpus > 1 and not self.always_consolidated:
            spread = self.table.unconsolidated.get(key)
            if spread is not None and alone > 0.0:  # not measured: as if it were on one node
                rate *= spread / alone
        return rate * self.noise(lease.job, lease.attempt) if self.noise_sigma else rate

    def noise(self, job: str, attempt: int) -> float:
        """The luck of an attempt: lognormal with mean 1, the same in every run with this seed."""
        digest = blake2b(f"{self.seed}:{attempt}:{job}".encode(), digest_size=8).digest()
        chance = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
        sigma = self.noise_sigma
        normal = NormalDist().inv_cdf(min(max(chance, 1e-15), 1 - 1e-15))
        return math.exp(sigma * normal - sigma * sigma / 2)
