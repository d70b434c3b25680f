"""GPUs that are idle after the placement: whoever can use them as they are, best rank first.

Needed only where counting GPUs was not enough: somebody was refused a place, or GPUs are held back for a gang.
On what is held back, incumbents that are not pinned may run on: they can be moved at the next boundary all the same.
(Not where preemptions are limited: there the gang would never see enough GPUs at once.)
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from scheduler.model.lease import GpuId
from scheduler.rounds.free_gpus import Floor
from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.place import Layout
from scheduler.rounds.resources import NOTHING
from scheduler.rounds.select import Choice


def fill(board: Board, order: Sequence[int], choice: Choice, layout: Layout, shut: Set[str]) -> None:
    """Place what can run on idle GPUs, without moving anybody. `shut`: nodes whose GPUs are held back."""
    layout.shut = frozenset()
    floors = [layout.floor(kind) for kind in range(len(board.sites))]
    left = [sum(map(len, floor.free)) for floor in floors]
    names = board.inputs.jobs
    busy = {job for bundle in layout.placements for job in bundle.jobs}
    below: set[int] = set()  # worker types whose reservation stands above this row
    for row in order:
        kind, width = board.kinds[row], board.widths[row]
        if left[kind] >= width:
            members = {names[job] for job in (board.first[row], board.second[row]) if job != NOBODY}
            if busy.isdisjoint(members):
                gpus = _place_for(board, layout, floors[kind], row, shut if kind in below else frozenset())
                if gpus is not None:
                    floors[kind].take_these(gpus)
                    left[kind] -= width
                    busy |= members
                    layout.put(row, gpus)
                    if choice.reserved.get(kind) == row:
                        del choice.reserved[kind]
        if choice.reserved.get(kind) == row:
            below.add(kind)
    _tell_skipped(board, order, choice, layout)


def _place_for(
    board: Board, layout: Layout, floor: Floor, row: int, shut: Set[str]
) -> tuple[GpuId, ...] | None:
    """Idle GPUs for the column: its own ones before others; None: it has to wait."""
    stock, demand = layout.stock, board.demand(row)
    bundle = board.inputs.candidates.bundles[row]
    if not shut or board.inputs.preemptions_max is None:
        for job in bundle.jobs:
            now = board.inputs.held.get(job)
            if now is None or now.bundle[1:] != bundle[1:] or not floor.has(now.gpus):
                continue
            if layout.charge(row, now.gpus):
                return now.gpus
    gpus = floor.find(board.widths[row], demand or NOTHING, stock, shut)
    if gpus is not None and stock is not None:
        stock.charge(demand, gpus)
    return gpus


def _tell_skipped(board: Board, order: Sequence[int], choice: Choice, layout: Layout) -> None:
    """Gangs that were chosen but found no place were skipped, too; those that found one were not."""
    bundles = board.inputs.candidates.bundles
    skipped = {row for row in (*choice.skipped, *layout.refused) if bundles[row] not in layout.placements}
    choice.skipped = [
        row for row in order if row in skipped and board.entitled[row] and board.widths[row] > 1
    ]
