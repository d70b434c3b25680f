"""The inputs of one round and its plan: arrays and names, no state, no clock.

RoundInputs → rank → select → place → RoundPlan       check_plan audits the plan independently of them
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler.model.lease import Bundle, GpuId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Columns:
    """Every way in which jobs could run, one row each. It changes only with an allocation or a newcomer."""

    bundles: tuple[Bundle, ...]
    # The row of each bundle.
    row_of: Mapping[Bundle, int]
    first: Ints  # rows of RoundInputs.jobs
    second: Ints  # NOBODY when alone
    worker_type: Ints  # rows of RoundInputs.worker_types
    gpus: Ints
    # The time lost when this column starts or moves.
    restart_s: Floats
    # A hash of the bundle, which breaks ties.
    tie: NDArray[np.uint64]

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """`first`, `second`, `worker_type` and `gpus`, to be read row by row."""
        return self.first.tolist(), self.second.tolist(), self.worker_type.tolist(), self.gpus.tolist()

    @cached_property
    def any_pair(self) -> bool:
        """Whether any column has two jobs."""
        return bool(self.second.max(initial=NOBODY) != NOBODY)

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
    """The terms that the allocation in force grants each column. One with neither share nor `backfill` does not run."""

    share: Floats  # quantised
    backfill: Bools  # may fill idle GPUs

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
        """`due`, to be read row by row."""
        entitled: list[bool] = self.due.tolist()
        return entitled


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The standing of each column in this round."""

    columns: Columns
    terms: Terms
    # The decayed sum over rounds, including this round's share × round_s.
    entitled_s: Floats
    # The decayed sum before this round.
    received_s: Floats
    # How many rounds in a row the column was due and its GPUs were not free.
    skipped: Ints
    # The rate is a guess: the column runs once before others, to be measured.
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
        """The share of each row in the allocation in force."""
        return self.terms.share

    @property
    def backfill(self) -> Bools:
        """Whether each row may fill idle GPUs."""
        return self.terms.backfill


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node that may get work in this round. Nearly always the same object as in the last round."""

    name: str
    worker_type: int
    # Healthy GPUs without leftover processes.
    gpus: tuple[GpuId, ...]
    cpus: float = np.inf
    memory_gb: float = np.inf


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a job on its nodes, beyond GPUs of the right type. Jobs with equal needs share one Need."""

    cpus_per_gpu: float = 0.0
    memory_gb_per_gpu: float = 0.0
    nodes: frozenset[str] | None = None  # None: any node


ANYWHERE = Need()


class Held(msgspec.Struct, frozen=True, gc=False):
    """The GPUs that a job holds when the round is planned, and how it runs on them."""

    bundle: Bundle
    gpus: tuple[GpuId, ...]
    # It keeps its GPUs: within its minimum run time, not preemptible, or between boundaries.
    pinned: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RoundInputs:
    """Everything that a plan depends on."""

    number: int
    round_s: float
    jobs: tuple[str, ...]
    worker_types: tuple[str, ...]
    candidates: Candidates
    nodes: tuple[NodeView, ...]
    held: Mapping[str, Held]  # by job
    needs: Mapping[str, Need] = field(default_factory=dict)  # by job; absent: ANYWHERE
    # How far a turn may take a column ahead of its due, or leave others behind theirs.
    stay_s: float = 0.0
    # The sum that a share of 1 converges to, as older rounds fade.
    full_s: float = math.inf
    # After how many rounds of being skipped GPUs are held back for a gang as they become free.
    reserve_after: int = 2
    # How many running jobs may lose their GPUs in one round.
    preemptions_max: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoundPlan:
    """The placement of every job that runs in the round. Any other job gives up its GPUs."""

    number: int
    placements: Mapping[Bundle, tuple[GpuId, ...]]
    reserved: Mapping[str, Bundle] = field(default_factory=dict)  # by worker type
    # Gangs that were due, but whose GPUs were not free.
    skipped: tuple[Bundle, ...] = ()
