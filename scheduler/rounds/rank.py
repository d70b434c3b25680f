"""Whose turn it is: the columns in order, best first. Six rules, the earlier one decides:

0. a gang for which GPUs are held back is at the head of the line until it has them;
1. what has a share comes before what may only fill GPUs that would be left idle (backfill);
2. a guess comes before what is known, so that it stops being a guess;
3. who is more than a round behind its due comes first, the furthest behind before the others;
4. who is more than a round ahead comes last;
5. priority = entitled / received, then entitled - received, then `tie`: a hash of the bundle, dealt by arrival among
   those that nothing is due to yet. Of what a column received,
   the last `stay_s` do not count while it runs: turns of two rounds serve shares as well as turns of one, with half
   as many jobs that have to move.

The ratio alone would leave some far behind: a hundred shares of a thousandth, each of them "nothing received yet", take
a hundred turns from one share of nine tenths. Rule 3 alone would starve small shares where there is not enough for all,
since a share below 1/29 never gets a round behind. So where a worker type gives out much less than it promised (nodes
are gone, gangs do not fit), everybody's due is what can be given: the same part of each entitlement.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scheduler.rounds.board import Board
from scheduler.rounds.inputs import Bools, Candidates, Columns, Floats, Ints, RoundInputs, Terms

LEAST_WORTH = 0.1  # of a column that loses all of its stay to the restart: late, but not never


def rank(board: Board) -> Ints:
    """Rows of `candidates` that may run, best first."""
    inputs, columns = board.inputs, board.inputs.candidates
    due = columns.terms.due
    starts = runs = np.zeros(len(columns), dtype=np.bool_)
    if columns.what.any_restart or inputs.stay_s > 0:
        starts, runs = changes(board)
    counted_s = np.where(runs, np.maximum(columns.received_s - inputs.stay_s, 0.0), columns.received_s)
    priority = _priority(columns.entitled_s, counted_s)
    if columns.what.any_restart:
        priority = np.where(starts, priority * worth_of_starting(columns, inputs.round_s), priority)
    due_s = _due_s(inputs)
    far = due & (due_s > inputs.round_s)
    behind, ahead = far.view(np.int8), (due_s < -inputs.round_s).view(np.int8)
    group = np.where(due, 1 - behind + ahead, 9)  # in a byte, which is sorted by counting
    if np.count_nonzero(columns.explore):
        group[~columns.explore] += 4
    if columns.what.any_gang:
        group[due & heads_of_line(inputs)] = -1
    keys = (
        columns.what.tie,
        counted_s - columns.entitled_s,
        starts > due,  # nobody is owed idle GPUs: whoever is there already loses nothing
        -np.where(far, due_s, priority),
        group,
    )
    order = np.lexsort(keys)
    return order[columns.terms.may_run[order]]


def heads_of_line(inputs: RoundInputs) -> Bools:
    """Gangs that were skipped so often that GPUs are held back for them."""
    columns = inputs.candidates
    waited: Bools = (columns.gpus > 1) & (columns.skipped >= inputs.reserve_after)
    return waited


def _due_s(inputs: RoundInputs) -> Floats:
    """By column: how far it is behind, of what can be given."""
    columns, part = inputs.candidates, part_given(inputs)
    entitled_s = columns.entitled_s
    if any(one != 1.0 for one in part):
        entitled_s = entitled_s * np.array(part)[columns.worker_type]
    return entitled_s - columns.received_s


def part_given(inputs: RoundInputs) -> list[float]:
    """By worker type: which part of what it promised is given out. 1 unless it is far behind with it.

    Far is more than two rounds and one more for each GPU promised: what turns alone may cause. Rounded, so that it
    does not depend on the order of the sum.
    """
    columns, types = inputs.candidates, len(inputs.worker_types)
    gpus, now = _promised(columns.what, columns.terms, types)

    def total(each_s: Floats) -> list[float]:
        return _by_type(columns.what, gpus * each_s, types)

    part = [1.0] * types
    late_s = total(columns.entitled_s - columns.received_s)
    far = [late - 2.0 * (one + 1.0) * inputs.round_s > 0 for late, one in zip(late_s, now, strict=True)]
    if any(far):
        promised_s, given_s = total(columns.entitled_s), total(columns.received_s)
        for kind in range(types):
            if far[kind]:
                part[kind] = round(given_s[kind] / (promised_s[kind] - now[kind] * inputs.round_s), 6)
    return part


@lru_cache(maxsize=2)  # the same from round to round
def _promised(what: Columns, terms: Terms, types: int) -> tuple[Floats, list[float]]:
    """The GPUs of each column that has a share, and by worker type how many of them are promised."""
    gpus: Floats = np.where(terms.due, what.gpus, 0.0)
    return gpus, _by_type(what, gpus * terms.share, types)


def _by_type(what: Columns, each: Floats, types: int) -> list[float]:
    sums: list[float] = np.bincount(what.worker_type, each, types).tolist()
    return sums


def worth_of_starting(columns: Candidates, round_s: float) -> Floats:
    """What is left of a column's rate once its restart is paid: 1 - restart / expected stay.

    A column of share x runs in a given round with probability x, so that a run of rounds lasts 1 / (1 - x) of them.
    """
    left = 1.0 - columns.what.restart_s * (1.0 - np.minimum(columns.share, 1.0)) / round_s
    worth: Floats = np.maximum(left, LEAST_WORTH)
    return worth


def changes(board: Board) -> tuple[Bools, Bools]:
    """Which columns would make somebody start, and which are just what runs now.

    A job whose partner leaves does not start, but runs in another column than before.
    """
    runs: Bools = np.frombuffer(board.runs, dtype=np.bool_)
    starts: Bools = ~runs
    if len(board.stays) > board.runs.count(True):  # somebody stays with another partner, or without
        starts[list(board.stays)] = False
    return starts, runs


def _priority(entitled_s: Floats, received_s: Floats) -> Floats:
    """Entitled / received; first of all where something is owed and nothing was received."""
    owed = np.where(entitled_s > 0, np.inf, 0.0)
    return np.divide(entitled_s, received_s, out=owed, where=received_s > 0)
