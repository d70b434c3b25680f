"""Who runs: from the best rank down, by counting GPUs. Where exactly is the placement's business.

- A job runs in at most one column, the GPUs of a type are never given out twice, a gang gets all or nothing.
- Pinned jobs keep their GPUs before anybody is asked; their turn only says with which partner they share them.
- A gang whose turn it is, but whose GPUs are in pinned hands, is skipped. Once skipped often enough it gets the
  reservation of the type: nobody below it takes what is free there, until it has enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.pins import Pins


@dataclass(slots=True)
class Choice:
    """What was chosen, before places are given. What pinned jobs do is in their `Pins`."""

    rows: list[int] = field(default_factory=list)  # best first
    reserved: dict[int, int] = field(
        default_factory=dict
    )  # by worker type: the column GPUs are held back for
    skipped: list[int] = field(default_factory=list)


def select(board: Board, order: Iterable[int], pins: Pins, closed: Set[int] = frozenset()) -> Choice:
    """Walk the columns from the best down and take what fits. Columns in `closed` were found to have no place."""
    first, second, kinds, widths = board.first, board.second, board.kinds, board.widths
    asked, behind = pins.asked, pins.behind
    free = [len(site.gpus - pins.gpus if pins.gpus else site.gpus) for site in board.sites]
    left = sum(free)
    watch = bool(pins.gpus or closed)  # gangs may be skipped, pinned jobs have to be met: no early end
    taken = bytearray(len(board.inputs.jobs))
    for job in pins.rows:
        taken[job] = True
    choice = Choice()
    chosen = choice.rows
    for row in order:
        a, b = first[row], second[row]
        if taken[a] or (b != NOBODY and taken[b]):
            if asked and (a in asked or b in asked):
                pins.meet(row, taken)
            continue
        kind, width = kinds[row], widths[row]
        if width > free[kind] or (closed and row in closed):
            if watch and width > 1 and board.entitled[row] and (width <= free[kind] + behind[kind]):
                choice.skipped.append(row)
                if kind not in choice.reserved and has_waited(board, row):
                    choice.reserved[kind] = row
                    if row not in closed:
                        left -= free[kind]
                        free[kind] = 0
            continue
        taken[a] = True
        if b != NOBODY:
            taken[b] = True
        free[kind] -= width
        left -= width
        chosen.append(row)
        if not left and not watch:
            break
    pins.settle()
    return choice


def has_waited(board: Board, row: int) -> bool:
    """Whether the gang was skipped often enough to have GPUs held back for it."""
    return bool(board.inputs.candidates.skipped[row] >= board.inputs.reserve_after)
