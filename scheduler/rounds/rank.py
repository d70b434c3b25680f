"""Whose turn it is: the columns in order, best first. Six rules, the earlier one decides:

0. a gang for which GPUs are held back is at the head of the line until it has them;
1. what has a share comes before what may only fill GPUs that would be left idle (backfill);
2. a guess comes before what is known, so that it stops being a guess;
3. who is late comes first, the furthest behind before the others: behind its due by more than `stay_s`, and by more
   than a round;
4. who runs goes on until it is `stay_s` ahead of its due: longer turns give everybody the same, with fewer moves;
5. priority = entitled / received, then entitled - received, then `tie`: a hash of the bundle, dealt by arrival among
   those that nothing is due to yet.

The ratio alone would leave some far behind: a hundred shares of a thousandth, each of them "nothing received yet", take
a hundred turns from one share of nine tenths. Rule 3 alone would starve small shares where there is not enough for all,
since a share below 1/20 never gets late. So where a worker type gives out much less than it promised (nodes
are gone, gangs do not fit), everybody's due is what can be given: the same part of each entitlement. Rule 4 alone would
starve them too, beside a share so large that it never gets ahead by much: it goes on until it is half as far ahead as
it can ever get.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.rounds.inputs import Bools, Candidates, Floats, Ints, RoundInputs
from scheduler.rounds.lookup import Board

LATE, TURN, FILL = 0, 2, 10  # who goes on comes one before its kind
GUESS = 4  # what is known comes so much later
WHOLE = 1e-4  # what a share that counts as all of the time may lack: an hour in a year
LEAST_WORTH = 0.1  # of a column that loses all of its stay to the restart: late, but not never


def rank(board: Board) -> Ints:
    """Rows of `candidates` that may run, best first."""
    inputs, columns = board.inputs, board.inputs.candidates
    if columns.what.any_restart or inputs.stay_s > 0:
        starts, runs = changes(board)
    else:
        starts = runs = np.zeros(len(columns), dtype=np.bool_)
    group, *others = turns(inputs, starts, runs)
    if np.count_nonzero(columns.explore):
        group[~columns.explore] += GUESS
    if columns.what.any_gang:
        group[columns.terms.due & heads_of_line(inputs)] = -1
    order = np.lexsort((columns.what.tie, *reversed(others), group))
    return order[columns.terms.may_run[order]]


def turns(inputs: RoundInputs, starts: Bools, runs: Bools) -> tuple[NDArray[np.int8], Floats, Bools, Floats]:
    """Rules 1 and 3 to 5 by column, the weightiest first; smaller comes earlier.

    A group, what orders it, whether idle GPUs would change hands (nobody is owed them: whoever is there already loses
    nothing), and by how much it is ahead.
    """
    columns, due = inputs.candidates, inputs.candidates.terms.due
    ahead_s = columns.received_s - columns.entitled_s
    lead_s = _lead_s(inputs, ahead_s)
    late = due & (lead_s < -late_s(inputs))
    priority = _priority(columns.entitled_s, columns.received_s)
    if columns.what.any_restart:
        priority = np.where(starts, priority * worth_of_starting(columns, inputs.round_s), priority)
    group = np.where(due, np.int8(TURN), np.int8(FILL))  # bytes are sorted by counting
    if inputs.stay_s > 0:
        so_far_s = lead_s + columns.share * inputs.round_s  # without what is due in this round
        group -= runs & (so_far_s <= may_lead_s(inputs))
    group[late] = LATE
    return group, np.where(late, lead_s, -priority), starts > due, ahead_s


def late_s(inputs: RoundInputs) -> float:
    """Who is further behind than this is late."""
    return max(inputs.stay_s, inputs.round_s)


def may_lead_s(inputs: RoundInputs) -> Floats:
    """By column: how far ahead of its due a turn may take it.

    A share of nearly one never gets ahead by `stay_s`, and gives way to the small ones beside it sooner. Beside a whole
    one there are none.
    """
    rest = 1.0 - inputs.candidates.share
    lead_s: Floats = np.minimum(inputs.stay_s, inputs.full_s / 2 * rest)
    lead_s[rest < WHOLE] = np.inf
    return lead_s


def heads_of_line(inputs: RoundInputs) -> Bools:
    """Gangs that were skipped so often that GPUs are held back for them."""
    columns = inputs.candidates
    waited: Bools = (columns.gpus > 1) & (columns.skipped >= inputs.reserve_after)
    return waited


def _lead_s(inputs: RoundInputs, ahead_s: Floats) -> Floats:
    """By column: how far it is ahead of its due: `ahead_s`, but where less can be given than was promised."""
    columns, part = inputs.candidates, part_given(inputs, ahead_s)
    if part is None:
        return ahead_s
    return columns.received_s - columns.entitled_s * part[columns.worker_type]


def part_given(inputs: RoundInputs, ahead_s: Floats) -> Floats | None:
    """By worker type: which part of what it promised is given out. 1 unless it is far behind with it; None: all 1.

    Far is more than turns alone may cause: for each column a round more than makes it late, or as much as its share
    ever comes to, and two rounds more in all. Rounded, so that it does not depend on the order of the sum.
    """
    columns, round_s, types = inputs.candidates, inputs.round_s, len(inputs.worker_types)
    kind, promised = columns.worker_type, columns.gpus * columns.terms.due
    turns_s = np.minimum(late_s(inputs) + round_s, inputs.full_s * columns.share)
    far = np.bincount(kind, promised * (ahead_s + turns_s), types) < -2.0 * round_s
    if not any(far.tolist()):
        return None
    given_s = np.bincount(kind, promised * columns.received_s, types)
    by_now_s = np.bincount(kind, promised * (columns.entitled_s - columns.share * round_s), types)
    return np.array(
        [
            round(given / due, 6) if less else 1.0
            for given, due, less in zip(given_s.tolist(), by_now_s.tolist(), far.tolist(), strict=True)
        ]
    )


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


@np.errstate(divide="ignore", invalid="ignore")
def _priority(entitled_s: Floats, received_s: Floats) -> Floats:
    """Entitled / received; first of all where something is owed and nothing was received."""
    ratio: Floats = np.fmax(entitled_s / received_s, 0.0)  # 0 / 0 is no number, and gives way to one
    return ratio
