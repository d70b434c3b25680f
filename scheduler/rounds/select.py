"""Select the columns that run, from the best rank down, by counting GPUs. The exact GPUs are up to the placement.

- A job runs in at most one column, the GPUs of a type are never given out twice, and a gang gets all or nothing.
- Pinned jobs keep their GPUs in any case; their turn only decides which partner shares the GPUs.
- A gang whose turn comes while pinned jobs hold its GPUs is skipped. Once skipped often enough, it reserves the type:
  no column below it takes free GPUs there until the gang has enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.pins import Pins


@dataclass(slots=True)
class Choice:
    """The selected columns, before placement. How pinned jobs run is in their `Pins`."""

    rows: list[int] = field(default_factory=list)  # best first
    # The column for which GPUs are held back, by worker type.
    reserved: dict[int, int] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)


def select(board: Board, order: Iterable[int], pins: Pins, closed: Set[int] = frozenset()) -> Choice:
    """Walk the columns from the best down and select what fits. Columns in `closed` could not be placed."""
    first, second, kinds, widths = board.first, board.second, board.kinds, board.widths
    meeting, behind = pins.meeting, pins.behind
    free = [len(site.gpus - pins.gpus if pins.gpus else site.gpus) for site in board.sites]
    left = sum(free)
    # Skipped gangs must be noted and pinned jobs settled, so the walk cannot end early.
    watch = bool(pins.gpus or closed)
    busy = bytearray(len(board.inputs.jobs))
    for job in pins.rows:
        busy[job] = True
    choice = Choice()
    chosen = choice.rows
    for row in order:
        a, b = first[row], second[row]
        if busy[a] or (b != NOBODY and busy[b]):
            if meeting and (a in meeting or b in meeting):
                pins.meet(row, busy)
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
        busy[a] = True
        if b != NOBODY:
            busy[b] = True
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
