"""Arrays that stay the same from round to round, until there is a new allocation or another new job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scheduler.core.planning.restarts import restart_costs_s
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Bundle
from scheduler.model.shares import ties
from scheduler.rounds.inputs import NO_ROW, Bools, Columns, Ints, Terms


@dataclass(slots=True, eq=False)
class Frame:
    """The columns of a round: the rows of the share table, then rows for jobs that came after the allocation.

    What changes with every round, such as the time received, is not part of it.
    """

    # Everything that the frame depends on, from `key_of`.
    key: tuple[object, ...]
    columns: Columns
    # The jobs of the columns, and the row of each.
    row_of_job: dict[str, int]
    jobs: tuple[str, ...]
    # The kinds of these jobs, as in `Kinds`.
    kinds: frozenset[int]
    # The kinds that have a rate that is a guess, and before them the `Kinds.for_versions` for which this holds.
    guessed_kinds: tuple[tuple[int, int], frozenset[int]]
    # The terms if every job may run.
    terms: Terms
    # A mask that is False for every column.
    no_columns: Bools
    # How many of the columns are not in the share table.
    new_rows: int
    # The jobs that could not run in the last round, the columns excepted from this, and the terms without these jobs.
    last_terms: tuple[tuple[list[str], list[int]], Terms]

    def terms_without(self, barred: list[str], in_place: list[int]) -> Terms:
        """Return the terms if these jobs may not run, except in these columns."""
        if not barred:
            return self.terms
        # They are nearly always the same jobs as in the last round.
        if self.last_terms[0] != (barred, in_place):
            may_run = self.columns_without(barred)
            may_run[in_place] = True
            self.last_terms = (
                (barred, in_place),
                Terms(self.terms.share * may_run, self.terms.backfill & may_run),
            )
        return self.last_terms[1]

    def columns_without(self, jobs: list[str]) -> Bools:
        """Return a mask of the columns that have none of these jobs."""
        is_other = np.ones(len(self.jobs), bool)
        is_other[[self.row_of_job[name] for name in jobs]] = False
        mask: Bools = is_other[self.columns.first]
        if self.columns.any_pair:
            mask &= (self.columns.second == NO_ROW) | is_other[self.columns.second]
        return mask

    def padded(self, known: np.ndarray) -> np.ndarray:
        """Extend an array of the share table by zeros for the rows that the table lacks."""
        return np.concatenate((known, np.zeros(self.new_rows, known.dtype))) if self.new_rows else known


def key_of(state: SchedulerState, types: Mapping[str, int], new: tuple[Bundle, ...]) -> tuple[object, ...]:
    """Return everything that a frame depends on."""
    # The length is enough to notice a change of the share table, whose rows are never removed.
    costs = state.settings.restart_cost_s, state.measured.version
    return state.shares, len(state.shares), new, tuple(types), costs


def frame_of(
    state: SchedulerState,
    types: Mapping[str, int],
    new: tuple[Bundle, ...],
    kind_of: Callable[[Job], int],
    specs: Sequence[JobSpec],
) -> Frame:
    """Make a frame from the current state.

    `new`: columns of jobs that came after the allocation, and pairs to probe; `specs`: the spec of a job of each kind.
    """
    table = state.shares
    row_of_job = dict(table.job_row)
    for bundle in new:
        for name in bundle.jobs:
            row_of_job.setdefault(name, len(row_of_job))
    jobs = tuple(row_of_job)
    all_jobs = [state.jobs[name] for name in jobs]
    numbers = frozenset(map(kind_of, all_jobs))
    bundles = (*table.bundles, *new)

    def column(in_table: np.ndarray, added: ArrayLike) -> np.ndarray:
        return np.concatenate([in_table, np.asarray(added, in_table.dtype)]) if new else in_table

    first = column(table.first, [row_of_job[b.jobs[0]] for b in new])
    columns = Columns(
        bundles=bundles,
        row_of=table.row_of | {bundle: row for row, bundle in enumerate(new, len(table))},
        first=first,
        second=column(table.second, [row_of_job[b.jobs[1]] if len(b.jobs) > 1 else NO_ROW for b in new]),
        worker_type=column(table.worker_type, [types[b.worker_type] for b in new]),
        gpus=column(table.gpus, [b.gpus for b in new]),
        restart_s=restart_costs_s(state, bundles, [all_jobs[row] for row in first.tolist()]),
        tie=column(table.tie, _ties_by_arrival(new, first[len(table) :]) if new else ()),
        granules=_granules(bundles, all_jobs) if any(specs[kind].is_grouped for kind in numbers) else {},
    )
    terms = Terms(
        share=column(table.share, [0.0] * len(new)),
        # A pair that is probed has a share in this round only, and fills no idle GPUs.
        backfill=column(table.backfill, [len(b.jobs) == 1 and bool(table.backfill.all()) for b in new]),
    )
    return Frame(
        key=key_of(state, types, new),
        columns=columns,
        row_of_job=row_of_job,
        jobs=jobs,
        kinds=numbers,
        guessed_kinds=((-1, -1), frozenset()),
        terms=terms,
        no_columns=np.zeros(len(columns.bundles), bool),
        new_rows=len(new),
        last_terms=(([], []), terms),
    )


def _ties_by_arrival(new: tuple[Bundle, ...], arrival: Ints) -> np.ndarray:
    """Return the ties of new columns, distributed so that columns of earlier jobs have smaller ties."""
    tie = ties(new)
    by_arrival = np.empty_like(tie)
    by_arrival[np.lexsort((tie, arrival))] = np.sort(tie)
    return by_arrival


def _granules(bundles: Iterable[Bundle], jobs: Iterable[Job]) -> dict[int, int]:
    """Return the granules of these columns that are above 1, by row. The granule of a pair suits both jobs."""
    specs = {job.id: job.spec for job in jobs if job.spec.is_grouped}
    return {
        row: math.lcm(
            *[specs[name].granule(bundle.gpus, bundle.worker_type) for name in bundle.jobs if name in specs]
        )
        for row, bundle in enumerate(bundles)
        if not specs.keys().isdisjoint(bundle.jobs)
    }
