"""What one round is decided from, and what it decides: arrays and names, no state, no clock.

RoundInputs → rank → select → place → RoundPlan       check_plan audits the outcome without trusting any of them
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
    """What could run, one row each: the same from round to round, until an allocation or a newcomer changes it."""

    bundles: tuple[Bundle, ...]
    row_of: Mapping[Bundle, int]  # the same the other way round
    first: Ints  # rows of RoundInputs.jobs
    second: Ints  # NOBODY when alone
    worker_type: Ints  # rows of RoundInputs.worker_types
    gpus: Ints
    restart_s: Floats  # time lost when this column starts or moves
    tie: NDArray[np.uint64]  # hash of the bundle: the last word

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """`first`, `second`, `worker_type` and `gpus`, to be read row by row."""
        return self.first.tolist(), self.second.tolist(), self.worker_type.tolist(), self.gpus.tolist()

    @cached_property
    def any_pair(self) -> bool:
        """Whether there is any with two jobs."""
        return bool(self.second.max(initial=NOBODY) != NOBODY)

    @cached_property
    def any_gang(self) -> bool:
        """Whether any asks for several GPUs."""
        return bool(self.gpus.max(initial=1) > 1)

    @cached_property
    def any_restart(self) -> bool:
        """Whether any job loses time as it starts or moves."""
        return bool(np.count_nonzero(self.restart_s))


@dataclass(frozen=True, eq=False)
class Terms:
    """What the allocation in force grants each column. Those with neither a share nor `backfill` do not run."""

    share: Floats  # quantised
    backfill: Bools  # may take GPUs that would be left idle

    @cached_property
    def due(self) -> Bools:
        """By column: whether it has a share."""
        return self.share > 0

    @cached_property
    def may_run(self) -> Bools:
        """By column: whether it has a share, or may at least fill idle GPUs."""
        return self.due | self.backfill

    @cached_property
    def entitled(self) -> list[bool]:
        """`due`, to be read row by row."""
        entitled: list[bool] = self.due.tolist()
        return entitled


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """How each column stands in this round."""

    what: Columns
    terms: Terms
    entitled_s: Floats  # decayed sums over rounds, this round's share × round_s included
    received_s: Floats  # before this round
    skipped: Ints  # rounds in a row in which it was due and its GPUs were not there
    explore: Bools  # its rate is a guess: try it once, before others

    def __len__(self) -> int:
        return len(self.explore)

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """What each row is."""
        return self.what.bundles

    @property
    def worker_type(self) -> Ints:
        """Rows of RoundInputs.worker_types."""
        return self.what.worker_type

    @property
    def gpus(self) -> Ints:
        """The width of each."""
        return self.what.gpus

    @property
    def share(self) -> Floats:
        """Of the allocation in force."""
        return self.terms.share

    @property
    def backfill(self) -> Bools:
        """Whether it may take GPUs that would be left idle."""
        return self.terms.backfill


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node that may be given work in this round. Nearly always the very same one as in the last."""

    name: str
    worker_type: int
    gpus: tuple[GpuId, ...]  # healthy ones that nobody is stuck on
    cpus: float = np.inf
    memory_gb: float = np.inf


@dataclass(frozen=True, slots=True)
class Need:
    """What a job asks of its nodes, beside GPUs of the right type. Jobs that ask the same share one Need."""

    cpus_per_gpu: float = 0.0
    memory_gb_per_gpu: float = 0.0
    nodes: frozenset[str] | None = None  # None: any node


ANYWHERE = Need()


class Held(msgspec.Struct, frozen=True, gc=False):
    """What a job holds as the round is planned."""

    bundle: Bundle
    gpus: tuple[GpuId, ...]
    pinned: bool = False  # keeps its GPUs: in its minimum run time, not preemptible, or not at a boundary


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
    stay_s: float = 0.0  # how far ahead of its due a turn may take a column, or leave others behind
    full_s: float = math.inf  # what a share of all the time ever comes to, as dues fade
    reserve_after: int = 2  # rounds; a gang skipped as often has GPUs held back for it as they free up
    preemptions_max: int | None = None  # running jobs that may lose their GPUs in one round


@dataclass(frozen=True, slots=True, eq=False)
class RoundPlan:
    """Who runs where. A job that is not in it gives its GPUs up."""

    number: int
    placements: Mapping[Bundle, tuple[GpuId, ...]]
    reserved: Mapping[str, Bundle] = field(default_factory=dict)  # by worker type
    skipped: tuple[Bundle, ...] = ()  # due, but their GPUs were not there
