"""Rank the columns, best first. There are six rules, and an earlier rule outweighs all later ones:

0. A gang for which GPUs are held back stays at the head of the line until it has them.
1. A column with a share comes before one that may only fill idle GPUs (backfill).
2. A guessed rate comes before a known one, so that it gets measured.
3. A late column comes first, and of two late columns the one further behind. A column is late if it has received less
   than its due (its entitlement so far) by more than `stay_s` and more than a round.
4. A running column continues until it is `stay_s` ahead of its due: longer turns give all columns the same time
   with fewer moves.
5. The greater entitled / received comes first, then the greater entitled - received, then `tie`: a hash of the bundle,
   or the order of arrival among columns that are not entitled to anything yet.

Rule 5 alone would leave some columns far behind: a hundred columns with shares of 1/1000 that have received nothing
would take a hundred turns from a column with a share of 9/10. Rule 3 alone would starve small shares if there is not
enough for all, because with the default settings a share below 1/20 never becomes late. So if a worker type gives out
much less than it promised (nodes are gone, gangs do not fit), the due of each of its columns is reduced to the same
part of its entitlement. Rule 4 alone would starve small shares beside a share so large that its column never gets ahead
by `stay_s`. So each column continues only until it is half as far ahead as it can ever get.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.rounds.inputs import Bools, Candidates, Floats, Ints, RoundInputs
from scheduler.rounds.lookup import Board

# Groups of columns, the smallest number first: late columns, others with a share, and those that only fill idle GPUs.
# The number of a running column that continues is one less.
LATE, TURN, FILL = 0, 2, 10
# If any rate is a guess, columns with known rates come this many groups later.
GUESS = 4
# A share counts as 1 if less than this is missing: about an hour in a year.
FULL_SHARE_SLACK = 1e-4
# The least answer of `worth_of_starting`: above 0, so that a column may start even if restarting takes all its time.
LEAST_WORTH = 0.1


def rank(board: Board) -> Ints:
    """Return the rows of the columns that may run, best first."""
    inputs, candidates = board.inputs, board.inputs.candidates
    if candidates.columns.any_restart or inputs.stay_s > 0:
        starts, runs = changes(board)
    else:
        starts = runs = np.zeros(len(candidates), dtype=np.bool_)
    group, *others = sort_keys(inputs, starts, runs)
    if np.count_nonzero(candidates.explore):
        group[~candidates.explore] += GUESS
    if candidates.columns.any_gang:
        group[candidates.terms.due & heads_of_line(inputs)] = -1
    order = np.lexsort((candidates.columns.tie, *reversed(others), group))
    return order[candidates.terms.may_run[order]]


def sort_keys(
    inputs: RoundInputs, starts: Bools, runs: Bools
) -> tuple[NDArray[np.int8], Floats, Bools, Floats]:
    """Return four sort keys of every column for rules 1 and 3 to 5, the most significant first; smaller is earlier.

    The keys: the group; the order within the group; whether the column would have to start and has no share; how far
    the column is ahead.
    """
    candidates, due = inputs.candidates, inputs.candidates.terms.due
    ahead_s = candidates.received_s - candidates.entitled_s
    lead_s = _lead_s(inputs, ahead_s)
    late = due & (lead_s < -late_s(inputs))
    priority = _priority(candidates.entitled_s, candidates.received_s)
    if candidates.columns.any_restart:
        priority = np.where(starts, priority * worth_of_starting(candidates, inputs.round_s), priority)
    # NumPy sorts bytes by counting, which is faster.
    group = np.where(due, np.int8(TURN), np.int8(FILL))
    if inputs.stay_s > 0:
        # How far each column would be ahead without the entitlement of this round.
        so_far_s = lead_s + candidates.share * inputs.round_s
        group -= runs & (so_far_s <= may_lead_s(inputs))
    group[late] = LATE
    return group, np.where(late, lead_s, -priority), starts > due, ahead_s


def late_s(inputs: RoundInputs) -> float:
    """Return how far behind its due a column is when it becomes late."""
    return max(inputs.stay_s, inputs.round_s)


def may_lead_s(inputs: RoundInputs) -> Floats:
    """Return how far ahead of its due each column may get while it continues.

    A column with a share of nearly 1 never gets ahead by `stay_s`. Its limit is lower, so that the columns with small
    shares get their turns. A column with a share of 1 has no limit, because there are no other shares beside it.
    """
    rest = 1.0 - inputs.candidates.share
    lead_s: Floats = np.minimum(inputs.stay_s, inputs.full_s / 2 * rest)
    lead_s[rest < FULL_SHARE_SLACK] = np.inf
    return lead_s


def heads_of_line(inputs: RoundInputs) -> Bools:
    """Return whether each column is a gang that was skipped so often that GPUs are held back for it."""
    candidates = inputs.candidates
    waited: Bools = (candidates.gpus > 1) & (candidates.skipped >= inputs.reserve_after)
    return waited


def _lead_s(inputs: RoundInputs, ahead_s: Floats) -> Floats:
    """Return how far each column is ahead of its due. The due is lower if the worker type gives out too little."""
    candidates, part = inputs.candidates, part_given(inputs, ahead_s)
    if part is None:
        return ahead_s
    return candidates.received_s - candidates.entitled_s * part[candidates.worker_type]


def part_given(inputs: RoundInputs, ahead_s: Floats) -> Floats | None:
    """Return, by worker type, the part of the promised time that is given out; None if that is 1 for all types.

    The part is 1 unless the columns of the type are, in total, further behind than waiting for turns can explain. That
    explains `late_s` and a round for each column, but at most its share of `full_s`, and two rounds more in total. The
    part is rounded, so that it does not depend on the order in which floats are added.
    """
    candidates, round_s, types = inputs.candidates, inputs.round_s, len(inputs.worker_types)
    kind, gpus_due = candidates.worker_type, candidates.gpus * candidates.terms.due
    turns_s = np.minimum(late_s(inputs) + round_s, inputs.full_s * candidates.share)
    far_behind = np.bincount(kind, gpus_due * (ahead_s + turns_s), types) < -2.0 * round_s
    if not any(far_behind.tolist()):
        return None
    received_s = np.bincount(kind, gpus_due * candidates.received_s, types)
    promised_s = np.bincount(kind, gpus_due * (candidates.entitled_s - candidates.share * round_s), types)
    by_type = zip(received_s.tolist(), promised_s.tolist(), far_behind.tolist(), strict=True)
    return np.array([round(received / promised, 6) if far else 1.0 for received, promised, far in by_type])


def worth_of_starting(candidates: Candidates, round_s: float) -> Floats:
    """Return the part of each column's rate that remains after its restart: 1 - restart / expected stay.

    A column of share x runs in any round with probability x, so a stay lasts 1 / (1 - x) rounds on average.
    """
    remaining = 1.0 - candidates.columns.restart_s * (1.0 - np.minimum(candidates.share, 1.0)) / round_s
    worth: Floats = np.maximum(remaining, LEAST_WORTH)
    return worth


def changes(board: Board) -> tuple[Bools, Bools]:
    """Return which columns would have to start a job, and which columns run already.

    A job whose partner leaves does not start, but from then on it runs in another column.
    """
    runs: Bools = np.frombuffer(board.runs, dtype=np.bool_)
    starts: Bools = ~runs
    # There are columns in which jobs could keep their GPUs with another partner, or without one.
    if len(board.stays) > board.runs.count(True):
        starts[list(board.stays)] = False
    return starts, runs


@np.errstate(divide="ignore", invalid="ignore")
def _priority(entitled_s: Floats, received_s: Floats) -> Floats:
    """Return entitled / received; infinity if only `received_s` is 0, and 0 if both are 0."""
    # 0 / 0 is NaN, and fmax prefers the number.
    ratio: Floats = np.fmax(entitled_s / received_s, 0.0)
    return ratio
