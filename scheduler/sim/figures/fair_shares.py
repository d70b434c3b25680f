"""Two measures of a job's fair share: the time that allocations promised, and the time of its work in an equal slice.

In an equal slice, each of n jobs has 1/n of every type to itself. A job m of g GPUs then makes
Σ_j T_mj c_j / max(n g, C) steps per second on a cluster of C GPUs, c_j of type j, where T_mj is the job's rate on
type j. These rates are always those of the throughput table, even if a policy sees others, so that policies can be
compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from scheduler.core.messages import Shares
from scheduler.model.jobs import JobSpec
from traces.throughputs import Row

# The number of rows at first. It doubles whenever no row is free.
ROWS_FIRST = 256
# Promises to removed jobs go to this row.
REMOVED_ROW = 0


class IsolatedPace:
    """The mean time of a step in an equal slice, over any period."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, str], float] = {}
        self._capacity: dict[str, int] = {}
        self._jobs = 0
        self._gpus = 0
        self._since_s = 0.0
        # By number of GPUs g: the integral of max(n g, C) over time, from 0 to `_since_s`.
        self._crowding = defaultdict[int, float](float)
        # By job type and number of GPUs: Σ_j T_mj c_j.
        self._weighted: dict[tuple[str, int], float] = {}

    def add_rates(self, rows: Iterable[Row]) -> None:
        """Add rows of the throughput table."""
        for job_type, gpus, worker_type, rate in rows:
            self._rates[job_type, gpus, worker_type] = rate
        self._weighted.clear()

    def set_jobs(self, now_s: float, jobs: int) -> None:
        """Set the number of jobs that share the cluster from now on."""
        self._settle(now_s)
        self._jobs = jobs

    def set_capacity(self, now_s: float, capacity: dict[str, int]) -> None:
        """Set the GPUs of each type from now on."""
        self._settle(now_s)
        self._capacity = capacity
        self._gpus = sum(capacity.values())
        self._weighted.clear()

    def marks(self, now_s: float) -> Mapping[int, float]:
        """Return, by number of GPUs, the value that `seconds_per_step` takes as `mark`; valid until time advances."""
        if now_s > self._since_s:
            self._settle(now_s)
        return self._crowding

    def seconds_per_step(self, spec: JobSpec, mark: float, since_s: float, now_s: float) -> float | None:
        """Return the mean time of a step since `since_s`; None if the table has no rates for the job.

        `mark` is the answer of `marks` at `since_s`, for the job's number of GPUs.
        """
        crowding = self.marks(now_s)[spec.gpus] - mark
        weighted = self._weighted_rate(spec)
        if weighted <= 0:
            return None
        passed_s = now_s - since_s
        mean = crowding / passed_s if passed_s > 0 else max(self._jobs * spec.gpus, self._gpus)
        return mean / weighted

    def _weighted_rate(self, spec: JobSpec) -> float:
        """Return Σ_j T_mj c_j."""
        plain = not (spec.rates or spec.worker_types or spec.excluded_worker_types)
        key = (spec.job_type, spec.gpus)
        if plain and key in self._weighted:
            return self._weighted[key]
        total = 0.0
        for kind, gpus in self._capacity.items():
            if spec.may_use(kind):
                total += gpus * spec.rates.get(kind, self._rates.get((*key, kind), 0.0))
        if plain:
            self._weighted[key] = total
        return total

    def _settle(self, now_s: float) -> None:
        passed_s = now_s - self._since_s
        if passed_s > 0:
            for gpus in self._crowding:
                self._crowding[gpus] += passed_s * max(self._jobs * gpus, self._gpus)
            self._since_s = now_s


class PromisedTime:
    """The time that allocations promised to each job on each type: the sum of share × time over all allocations.

    Each job of a pair is credited with the whole time, but with half of the GPU time.
    """

    def __init__(self, kind: Callable[[str], int]) -> None:
        """`kind` returns the number of a worker type, which is its column here."""
        self._kind = kind
        self._row_of: dict[str, int] = {}
        self._free: list[int] = list(range(REMOVED_ROW + 1, ROWS_FIRST))
        self._since_s = 0.0
        # By measure (time, GPU time), row and worker type.
        self._share = np.zeros((2, ROWS_FIRST, 1))
        self._promised_s = np.zeros((2, ROWS_FIRST, 1))

    def add(self, job: str) -> None:
        """Add a job, to which nothing is promised yet."""
        if not self._free:
            _, rows, kinds = self._share.shape
            self._resize(2 * rows, kinds)
            self._free = list(range(rows, 2 * rows))
        self._row_of[job] = self._free.pop()

    def so_far(self, now_s: float, job: str) -> dict[int, float]:
        """Return the seconds promised to a job until now, by type; empty for a removed job."""
        return self._sum(0, now_s, job)

    def gpu_time_so_far(self, now_s: float, job: str) -> dict[int, float]:
        """Return the GPU-seconds promised to a job until now, by type."""
        return self._sum(1, now_s, job)

    def _sum(self, measure: int, now_s: float, job: str) -> dict[int, float]:
        row = self._row_of.get(job)
        if row is None:
            return {}
        passed_s = now_s - self._since_s
        sums = zip(self._promised_s[measure, row].tolist(), self._share[measure, row].tolist(), strict=True)
        times = [before_s + share * passed_s for before_s, share in sums]
        return {kind: time_s for kind, time_s in enumerate(times) if time_s}

    def remove(self, job: str) -> None:
        """Remove a job that has ended; later promises to it do not count."""
        row = self._row_of.pop(job)
        self._share[:, row] = self._promised_s[:, row] = 0.0
        self._free.append(row)

    def adopt(self, now_s: float, shares: Shares) -> None:
        """Let these shares replace the shares in force: from now on, these are added up."""
        self._promised_s += self._share * (now_s - self._since_s)
        self._since_s = now_s
        self._share[:] = 0.0
        kind_of = np.array([self._kind(name) for name in shares.worker_types], dtype=np.int64)
        if kind_of.size and kind_of.max() >= self._share.shape[2]:
            self._resize(self._share.shape[1], int(kind_of.max()) + 1)
        share = np.array(shares.share, dtype=np.float64)
        used = share > 0
        share = share[used]
        if not share.size:
            return
        is_used = used.tolist()
        first, kind, gpus = (
            np.fromiter(compress(column, is_used), np.int64)
            for column in (shares.first, shares.worker_type, shares.gpus)
        )
        row_of = np.array([self._row_of.get(job, REMOVED_ROW) for job in shares.jobs])
        row, kind, gpu_share = row_of[first], kind_of[kind], share * gpus
        if max(shares.second) >= 0:
            second = np.fromiter(compress(shares.second, is_used), np.int64)
            packed = second >= 0
            gpu_share[packed] *= 0.5
            row = np.concatenate((row, np.where(packed, row_of[second], REMOVED_ROW)))
            kind, share, gpu_share = np.tile(kind, 2), np.tile(share, 2), np.tile(gpu_share, 2)
        _, rows, kinds = self._share.shape
        cell = row * kinds + kind
        for measure, amount in enumerate((share, gpu_share)):
            self._share[measure] = np.bincount(cell, amount, rows * kinds).reshape(rows, kinds)

    def _resize(self, rows: int, kinds: int) -> None:
        self._share = _grown(self._share, rows, kinds)
        self._promised_s = _grown(self._promised_s, rows, kinds)


def _grown(sums: NDArray[np.float64], rows: int, kinds: int) -> NDArray[np.float64]:
    larger = np.zeros((2, rows, kinds))
    larger[:, : sums.shape[1], : sums.shape[2]] = sums
    return larger
