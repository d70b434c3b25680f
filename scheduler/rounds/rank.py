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

The ratio alone would leave some columns far behind: a hundred shares of 1/1000, none of which has received anything,
would take a hundred turns from one share of 9/10. Rule 3 alone would starve small shares if there is not enough for
all, since a share below 1/20 never becomes late. So if a worker type gives out much less than it promised (nodes are
gone, gangs do not fit), the due of every column is the same part of its entitlement. Rule 4 alone would starve small
shares beside one so large that it never gets ahead by `stay_s`. So each column continues only until it is half as far
ahead as it can ever get.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.rounds.inputs import Bools, Candidates, Floats, Ints, RoundInputs
from scheduler.rounds.lookup import Board

# Groups of columns, best first. A column that continues comes one group earlier.
LATE, TURN, FILL = 0, 2, 10
# A column with a known rate comes this many groups after one with a guessed rate.
GUESS = 4
# A share counts as 1 if it is less than this below 1: an hour in a year.
FULL_SHARE_SLACK = 1e-4
# The least worth of starting a column. It is above 0, so that a column starts even if its restart takes all its stay.
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

    The keys: the group; the order within it; whether the column would start without a share, which comes after columns
    that run already; how far the column is ahead.
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
        # Without the entitlement of this round.
        so_far_s = lead_s + candidates.share * inputs.round_s
        group -= runs & (so_far_s <= may_lead_s(inputs))
    group[late] = LATE
    return group, np.where(late, lead_s, -priority), starts > due, ahead_s


def late_s(inputs: RoundInputs) -> float:
    """Return how far behind its due a column is when it becomes late."""
    return max(inputs.stay_s, inputs.round_s)


def may_lead_s(inputs: RoundInputs) -> Floats:
    """Return how far ahead of its due each column may get while it continues.

    A share of nearly 1 never gets ahead by `stay_s`, so its limit is lower, and the small shares beside it get their
    turns. A share of 1 has no limit, since it has no others beside it.
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
    """Return how far each column is ahead of its due. If its type gives out less than it promised, its due is lower."""
    candidates, part = inputs.candidates, part_given(inputs, ahead_s)
    if part is None:
        return ahead_s
    return candidates.received_s - candidates.entitled_s * part[candidates.worker_type]


def part_given(inputs: RoundInputs, ahead_s: Floats) -> Floats | None:
    """Return, by worker type, the part of the promised time that is given out; None if that is 1 for all of them.

    It is 1 unless the type is further behind than turns alone can explain: each column by `late_s` and a round, though
    never by more than its share of `full_s`; and two rounds more in total. It is rounded, so that it does not depend
    on the order of the sum.
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
    """Return which columns would start a job, and which run already, with the same partner.

    A job whose partner leaves does not start, but runs in another column than before.
    """
    runs: Bools = np.frombuffer(board.runs, dtype=np.bool_)
    starts: Bools = ~runs
    # Some job keeps its GPUs with another partner, or without one.
    if len(board.stays) > board.runs.count(True):
        starts[list(board.stays)] = False
    return starts, runs


@np.errstate(divide="ignore", invalid="ignore")
def _priority(entitled_s: Floats, received_s: Floats) -> Floats:
    """Return entitled / received, infinite if only `received_s` is 0, and 0 if both are."""
    # 0 / 0 is NaN, and fmax prefers the number.
    ratio: Floats = np.fmax(entitled_s / received_s, 0.0)
    return ratio
