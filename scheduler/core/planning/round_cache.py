"""Arrays that rounds share as long as the allocation, and the jobs that came after it, stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle
from scheduler.model.shares import ties
from scheduler.rounds.inputs import NOBODY, Bools, Columns, Floats, Ints, Terms


@dataclass(slots=True, eq=False)
class Frame:
    """The rows of the share table, then rows for jobs that came after it, without their standing in a round."""

    key: tuple[object, ...]
    columns: Columns
    row_of_job: dict[str, int]
    jobs: tuple[str, ...]
    # The kinds of these jobs, as in `Kinds`.
    kinds: frozenset[int]
    # Kinds with ways whose rates are guesses, and the versions of `Kinds` for which they were found.
    guessing: tuple[tuple[int, int], frozenset[int]]
    terms: Terms
    # False for every column.
    nothing: Bools
    # How many rows the share table lacks.
    new: int
    # The last jobs that could not run, and the terms without them.
    last: tuple[list[str], Terms]

    def terms_without(self, barred: list[str]) -> Terms:
        """Return the terms when these jobs may not run. Nearly always the same as in the last round."""
        if not barred:
            return self.terms
        if self.last[0] != barred:
            of_job = np.ones(len(self.jobs), bool)
            of_job[[self.row_of_job[name] for name in barred]] = False
            may = of_job[self.columns.first]
            if self.columns.any_pair:
                may &= (self.columns.second == NOBODY) | of_job[self.columns.second]
            self.last = barred, Terms(self.terms.share * may, self.terms.backfill & may)
        return self.last[1]

    def padded(self, known: np.ndarray) -> np.ndarray:
        """Extend an array of the share table by zeros for the rows that the table does not have."""
        return np.concatenate((known, np.zeros(self.new, known.dtype))) if self.new else known


def key_of(state: SchedulerState, types: Mapping[str, int], new: tuple[Bundle, ...]) -> tuple[object, ...]:
    """Return everything that a frame depends on. The rows of a share table are only ever added to."""
    return state.shares, len(state.shares), new, tuple(types), state.settings.restart_cost_s


def frame_of(
    state: SchedulerState,
    types: Mapping[str, int],
    new: tuple[Bundle, ...],
    kind_of: Callable[[Job], int],
) -> Frame:
    """Make the frame of the rounds from now on. `new`: columns of jobs that came after the allocation."""
    table = state.shares
    row_of_job = dict(table.job_row)
    for bundle in new:
        row_of_job.setdefault(bundle.jobs[0], len(row_of_job))
    jobs = tuple(row_of_job)
    known = [state.jobs[name] for name in jobs]

    def column(known: np.ndarray, more: ArrayLike) -> np.ndarray:
        return np.concatenate([known, np.asarray(more, known.dtype)]) if new else known

    first = column(table.first, [row_of_job[b.jobs[0]] for b in new])
    columns = Columns(
        bundles=(*table.bundles, *new),
        row_of=table.row_of | {bundle: row for row, bundle in enumerate(new, len(table))},
        first=first,
        second=column(table.second, [NOBODY] * len(new)),
        worker_type=column(table.worker_type, [types[b.worker_type] for b in new]),
        gpus=column(table.gpus, [b.gpus for b in new]),
        restart_s=_restart_s(state, known)[first],
        tie=column(table.tie, _in_line(new, first[len(table) :]) if new else ()),
    )
    terms = Terms(
        share=column(table.share, [0.0] * len(new)),
        backfill=column(table.backfill, [bool(table.backfill.all())] * len(new)),
    )
    return Frame(
        key=key_of(state, types, new),
        columns=columns,
        row_of_job=row_of_job,
        jobs=jobs,
        kinds=frozenset(map(kind_of, known)),
        guessing=((-1, -1), frozenset()),
        terms=terms,
        nothing=np.zeros(len(columns.bundles), bool),
        new=len(new),
        last=([], terms),
    )


def _in_line(new: tuple[Bundle, ...], arrival: Ints) -> np.ndarray:
    """Return the ties of columns that nothing is due to yet, reassigned so that earlier jobs have smaller ones."""
    tie = ties(new)
    dealt = np.empty_like(tie)
    dealt[np.lexsort((tie, arrival))] = np.sort(tie)
    return dealt


def _restart_s(state: SchedulerState, jobs: Sequence[Job]) -> Floats:
    """Return the time that each job loses when it starts or moves."""
    usual = state.settings.restart_cost_s
    costs = [job.spec.restart_cost_s for job in jobs]
    stated = np.array([usual if cost is None else cost for cost in costs], float)
    return np.asarray(np.minimum(stated, bounds.TIME_S.most))
