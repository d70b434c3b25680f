"""Count the columns that come before a given one in the order of the next round (scheduler.rounds.rank).

The order here differs from that of a round in one point: every restart is assumed to take the time from the settings,
even if the job sets another time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.state import SchedulerState
from scheduler.explain.scene import Column, Scene
from scheduler.model.jobs import JobState
from scheduler.model.lease import Phase
from scheduler.rounds.inputs import Bools, Candidates, Columns, Ints, RoundInputs, Terms
from scheduler.rounds.rank import sort_keys


@dataclass(frozen=True, slots=True)
class Claims:
    """The columns of the same worker type that have a higher claim than a given column."""

    # The GPUs of all these columns.
    gpus: int
    # How many jobs of these columns run on this worker type now.
    running: int
    # How many jobs of these columns wait for GPUs of this worker type.
    waiting: int
    # How much time the given column was due and did not get, including the next round.
    due_s: float


def higher_claims(scene: Scene, column: Column) -> Claims:
    """Return the claims that come before this column in the next round. The column must have a share."""
    state, table, row = scene.state, scene.state.shares, column.row
    assert row is not None
    live = _live(state)
    own_row = table.job_row[scene.job.id]
    rows = np.flatnonzero(
        (table.worker_type == table.worker_type[row])
        & (table.share > 0)
        & live[table.first]
        & ((table.second < 0) | live[table.second])
    )
    own_index = int(np.searchsorted(rows, row))
    runs = np.zeros(len(table), bool)
    for holding in scene.pools[column.bundle.worker_type].holdings:
        bundle_row = table.row_of.get(holding.bundle)
        if bundle_row is not None and holding.phase != Phase.STOPPING:
            runs[bundle_row] = True
    running = runs[rows]
    keys = _keys(state, rows, running)
    before = np.zeros(len(rows), bool)
    equal = np.ones(len(rows), bool)
    for key in keys:
        before |= equal & (key < key[own_index])
        equal &= key == key[own_index]
    before &= (table.first[rows] != own_row) & (table.second[rows] != own_row)
    due_s = -float(keys[-1][own_index])
    runs_now = before & running
    busy = np.zeros(len(table.jobs), bool)
    # A job that runs on this worker type does not also wait for another way to run on it.
    busy[table.first[rows[running]]] = True
    waiting = before & ~running & ~busy[table.first[rows]]
    return Claims(
        gpus=int(table.gpus[rows[before]].sum()),
        running=int(runs_now.sum()),
        waiting=len(np.unique(table.first[rows[waiting]])),
        due_s=due_s,
    )


def _live(state: SchedulerState) -> Bools:
    """Return a mask of the jobs of the share table that may get GPUs."""
    table = state.shares
    live = np.fromiter(map(state.active.__contains__, table.jobs), bool, len(table.jobs))
    kept_back = [job.id for job in state.active.values() if job.state is JobState.HELD]
    kept_back += [job.id for job in state.to_review.values() if job.blocked_by]
    live[[row for name in kept_back if (row := table.job_row.get(name)) is not None]] = False
    return live


def _keys(state: SchedulerState, rows: Ints, running: Bools) -> tuple[np.ndarray, ...]:
    """Return the sort keys of these rows, the most significant first. The last key is how far each row is ahead."""
    table, settings = state.shares, state.settings
    round_s, decay = settings.round_s, settings.decay
    share = table.share[rows]
    entitled_s = table.entitled_s[rows] * decay + share * round_s
    received_s = table.received_s[rows] * decay
    columns = Columns(
        bundles=(),
        row_of={},
        first=table.first[rows],
        second=table.second[rows],
        worker_type=np.zeros(len(rows), np.int64),
        gpus=table.gpus[rows],
        restart_s=np.full(len(rows), settings.restart_cost_s),
        tie=table.tie[rows],
    )
    candidates = Candidates(
        columns=columns,
        terms=Terms(share, table.backfill[rows]),
        entitled_s=entitled_s,
        received_s=received_s,
        skipped=table.skipped[rows],
        explore=np.zeros(len(rows), bool),
    )
    inputs = RoundInputs(
        number=0,
        round_s=round_s,
        jobs=(),
        worker_types=("",),
        candidates=candidates,
        nodes=(),
        held={},
        stay_s=settings.stay_s,
        full_s=settings.full_s,
    )
    group, order, _, ahead_s = sort_keys(inputs, ~running, running)
    return group, order, ahead_s
