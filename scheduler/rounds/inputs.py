"""The inputs of one round and its plan: plain data, without state or clock.

RoundInputs → rank → select → place → near_data → RoundPlan       check_plan audits the plan independently
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler.model.lease import Bundle, GpuId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# In place of a row: the job or worker type does not exist.
NO_ROW = -1


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns: every way in which jobs could run. Each of these arrays has one entry, called a row, per column.

    The columns change only with a new allocation or a new job.
    """

    bundles: tuple[Bundle, ...]
    # The row of each bundle.
    row_of: Mapping[Bundle, int]
    # The jobs, as rows of RoundInputs.jobs; `second` is NO_ROW in a column of one job.
    first: Ints
    second: Ints
    # Rows of RoundInputs.worker_types.
    worker_type: Ints
    gpus: Ints
    # The time lost when the column of this row starts or moves.
    restart_s: Floats
    # A hash of the bundle, to break ties.
    tie: NDArray[np.uint64]
    # The granules, by row; 1 if absent. Each node gives a column a multiple of its granule.
    granules: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """`first`, `second`, `worker_type` and `gpus` as lists, which are faster to read row by row."""
        return self.first.tolist(), self.second.tolist(), self.worker_type.tolist(), self.gpus.tolist()

    @cached_property
    def any_pair(self) -> bool:
        """Whether any column has two jobs."""
        return bool(self.second.max(initial=NO_ROW) != NO_ROW)

    @cached_property
    def any_gang(self) -> bool:
        """Whether any column has several GPUs."""
        return bool(self.gpus.max(initial=1) > 1)

    @cached_property
    def any_restart(self) -> bool:
        """Whether any column loses time when it starts or moves."""
        return bool(np.count_nonzero(self.restart_s))


@dataclass(frozen=True, eq=False)
class Terms:
    """The current allocation, column by column. A column with neither share nor `backfill` does not run."""

    # The part of the time that the column is to run, rounded to millionths.
    share: Floats
    # Whether the column may fill idle GPUs.
    backfill: Bools

    @cached_property
    def due(self) -> Bools:
        """Whether each column has a share."""
        return self.share > 0

    @cached_property
    def may_run(self) -> Bools:
        """Whether each column has a share, or may at least fill idle GPUs."""
        return self.due | self.backfill

    @cached_property
    def entitled(self) -> list[bool]:
        """`due` as a list, which is faster to read row by row."""
        entitled: list[bool] = self.due.tolist()
        return entitled


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The columns of this round, with the time that each was promised and the time that it has received."""

    columns: Columns
    terms: Terms
    # The GPU time promised so far, decayed, including this round's share × round_s.
    entitled_s: Floats
    # The GPU time received before this round, decayed.
    received_s: Floats
    # The number of rounds in a row in which the column had a share but its GPUs were not free.
    skipped: Ints
    # Whether the column's rate is a guess. Such a column ranks before others, so that its rate gets measured.
    explore: Bools

    def __len__(self) -> int:
        return len(self.explore)

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The bundle of each row."""
        return self.columns.bundles

    @property
    def worker_type(self) -> Ints:
        """The worker type of each row, as a row of RoundInputs.worker_types."""
        return self.columns.worker_type

    @property
    def gpus(self) -> Ints:
        """The number of GPUs of each row."""
        return self.columns.gpus

    @property
    def share(self) -> Floats:
        """The share of each row in the current allocation."""
        return self.terms.share

    @property
    def backfill(self) -> Bools:
        """Whether each row may fill idle GPUs."""
        return self.terms.backfill


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node that may get work in this round."""

    name: str
    # A row of RoundInputs.worker_types.
    worker_type: int
    # Healthy GPUs without leftover processes.
    gpus: tuple[GpuId, ...]
    cpus: float = np.inf
    memory_gb: float = np.inf


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a job on its nodes beyond GPUs of the right type."""

    cpus_per_gpu: float = 0.0
    memory_gb_per_gpu: float = 0.0
    # None allows every node.
    nodes: frozenset[str] | None = None


ANYWHERE = Need()


class GpuLimit(NamedTuple):
    """How many GPUs some jobs may hold together, at most."""

    # A row of RoundInputs.worker_types; NO_ROW counts the GPUs of all types.
    worker_type: int
    gpus: int


class SpendingLimit(NamedTuple):
    """A limit on the sum that some jobs spend until the round has ended, in one period of a budget."""

    # What is left after all leases of now have ended.
    left: float
    # By worker type: what a GPU is charged per hour.
    price: Mapping[str, float]
    # How many hours of the period lie before the end of the leases of now, and between that and the end of the round.
    before_h: float
    after_h: float


class Held(msgspec.Struct, frozen=True, gc=False):
    """The GPUs that a job holds when the round is planned, and the bundle that runs on them."""

    bundle: Bundle
    gpus: tuple[GpuId, ...]
    # Whether the job must keep its GPUs: it is protected from preemption, or the plan is made in mid-round.
    pinned: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RoundInputs:
    """Everything that a plan depends on."""

    # The number of the round.
    number: int
    round_s: float
    jobs: tuple[str, ...]
    worker_types: tuple[str, ...]
    candidates: Candidates
    nodes: tuple[NodeView, ...]
    # By job: what it holds before the round.
    held: Mapping[str, Held]
    # By job; an absent job has no needs (ANYWHERE).
    needs: Mapping[str, Need] = field(default_factory=dict)
    # Quotas on GPUs; and by job, the rows of those that count it. An absent job has none.
    limits: tuple[GpuLimit, ...] = ()
    limits_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Budgets; and by job, the rows of those that count it.
    budgets: tuple[SpendingLimit, ...] = ()
    budgets_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # How many jobs may run at once; and by job, the rows of the limits that count it. An absent job has none.
    job_limits: tuple[int, ...] = ()
    job_limits_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # By job that holds no GPUs: how many bytes of its data each node has in its cache. Decides among equal places only.
    cached_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # GPUs that no job counts as holding, where one that was asked to stop may still be saving.
    stopping: frozenset[GpuId] = frozenset()
    # How far ahead of its entitlement a running column may get before others take its GPUs.
    stay_s: float = 0.0
    # What `entitled_s` converges to for a share of 1: it stays finite, because older rounds decay.
    full_s: float = math.inf
    # The number of skipped rounds after which the scheduler holds back free GPUs for a gang.
    reserve_after: int = 2
    # How many running jobs may lose their GPUs in one round; None: any number.
    preemptions_max: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoundPlan:
    """The placement of every job that runs in the round. Any other job gives up its GPUs."""

    # The number of the round.
    number: int
    placements: Mapping[Bundle, tuple[GpuId, ...]]
    # The gang for which GPUs are held back, by worker type.
    reserved: Mapping[str, Bundle] = field(default_factory=dict)
    # Gangs that had a share, but whose GPUs were not free.
    skipped: tuple[Bundle, ...] = ()
