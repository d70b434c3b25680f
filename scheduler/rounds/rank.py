"""Whose turn it is: the columns in order, best first. Four rules, the earlier one decides:

1. what has a share comes before what may only fill GPUs that would be left idle (backfill);
2. a guess comes before what is known, so that it stops being a guess;
3. who is more than a round behind its due comes first, who is more than a round ahead comes last;
4. priority = entitled / received, then entitled - received, then the hash of the bundle.

The third rule keeps everybody within two rounds of its due where the ratio alone would not: a hundred shares of a
thousandth, each of them "nothing received yet", would otherwise take a hundred turns from one share of nine tenths.
"""

from __future__ import annotations

import numpy as np

from scheduler.rounds.inputs import NOBODY, Bools, Candidates, Floats, Ints, RoundInputs

LEAST_WORTH = 0.1  # of a column that loses all of its stay to the restart: late, but not never


def rank(inputs: RoundInputs) -> Ints:
    """Rows of `candidates` that may run, best first."""
    columns = inputs.candidates
    due = columns.share > 0
    may_run = np.flatnonzero(due | columns.backfill)
    starts = changes(inputs) if columns.restart_s.any() else np.zeros(len(columns), dtype=np.bool_)
    worth = np.where(starts, worth_of_starting(columns, inputs.round_s), 1.0)
    behind_s = columns.entitled_s - columns.received_s
    group = 8 * ~due + 4 * ~columns.explore + np.where(due, _standing(behind_s, inputs.round_s), 1)
    keys = (
        columns.tie,
        -behind_s,
        starts & ~due,  # nobody is owed idle GPUs: whoever is there already loses nothing
        -_priority(columns) * worth,
        group.astype(np.int8),
    )
    return may_run[np.lexsort(tuple(key[may_run] for key in keys))]


def worth_of_starting(columns: Candidates, round_s: float) -> Floats:
    """What is left of a column's rate once its restart is paid: 1 - restart / expected stay.

    A column of share x runs in a given round with probability x, so that a run of rounds lasts 1 / (1 - x) of them.
    """
    left = 1.0 - columns.restart_s * (1.0 - np.minimum(columns.share, 1.0)) / round_s
    worth: Floats = np.maximum(left, LEAST_WORTH)
    return worth


def changes(inputs: RoundInputs) -> Bools:
    """Which columns are not what runs now, so that somebody would have to start."""
    columns = inputs.candidates
    row_of = {name: row for row, name in enumerate(inputs.worker_types)}
    held = [inputs.held.get(job) for job in inputs.jobs]
    types = np.array(
        [NOBODY if now is None else row_of.get(now.bundle[1], NOBODY) for now in held], dtype=np.int64
    )
    widths = np.array([0 if now is None else now.bundle[2] for now in held], dtype=np.int64)
    first, second = columns.first, columns.second
    same = (types[first] == columns.worker_type) & (widths[first] == columns.gpus)
    pair = np.flatnonzero(second != NOBODY)
    same[pair] &= (types[second[pair]] == columns.worker_type[pair]) & (
        widths[second[pair]] == columns.gpus[pair]
    )
    moved: Bools = ~same
    bundles, one, other = columns.bundles, first.tolist(), second.tolist()
    for row in np.flatnonzero(same).tolist():
        label, mine = bundles[row][3], held[one[row]]
        theirs = mine if other[row] == NOBODY else held[other[row]]
        assert mine is not None
        assert theirs is not None
        if mine.bundle[3] != label or theirs.bundle[3] != label or theirs.gpus != mine.gpus:
            moved[row] = True
    return moved


def _standing(behind_s: Floats, round_s: float) -> Ints:
    """0 when more than a round behind, 2 when more than a round ahead, 1 in between."""
    return 1 - (behind_s > round_s).astype(np.int64) + (behind_s < -round_s)


def _priority(columns: Candidates) -> Floats:
    """Entitled / received; first of all where something is owed and nothing was received."""
    owed = np.where(columns.entitled_s > 0, np.inf, 0.0)
    return np.divide(columns.entitled_s, columns.received_s, out=owed, where=columns.received_s > 0)
