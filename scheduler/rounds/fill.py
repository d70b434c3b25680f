"""Give out the GPUs that are idle after the placement, to columns that can use them as they are, best rank first.

This is needed only where counting GPUs was not enough: a column was refused a place, or GPUs are held back for a gang.
On held-back GPUs unpinned incumbents may continue, since they can be moved at the next boundary just as well. The
exception is a limit on preemptions: with it, the gang would never get enough GPUs at once.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from scheduler.model.lease import GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.place import Layout
from scheduler.rounds.resources import NOTHING
from scheduler.rounds.select import Choice


def fill(board: Board, order: Sequence[int], choice: Choice, layout: Layout, shut: Set[str]) -> None:
    """Place columns that can run on idle GPUs, without moving any other. `closed`: nodes whose GPUs are held back."""
    layout.shut = frozenset()
    idle = [layout.free_gpus(kind) for kind in range(len(board.sites))]
    left = [sum(map(len, free_gpus.free)) for free_gpus in idle]
    names = board.inputs.jobs
    busy = {job for bundle in layout.placements for job in bundle.jobs}
    # Worker types whose reserved column ranks above the current row.
    below: set[int] = set()
    for row in order:
        kind, width = board.kinds[row], board.widths[row]
        if left[kind] >= width:
            members = {names[job] for job in (board.first[row], board.second[row]) if job != NOBODY}
            if busy.isdisjoint(members):
                gpus = _place_for(board, layout, idle[kind], row, shut if kind in below else frozenset())
                if gpus is not None:
                    idle[kind].take_these(gpus)
                    left[kind] -= width
                    busy |= members
                    layout.put(row, gpus)
                    if choice.reserved.get(kind) == row:
                        del choice.reserved[kind]
        if choice.reserved.get(kind) == row:
            below.add(kind)
    _update_skipped(board, order, choice, layout)


def _place_for(
    board: Board, layout: Layout, free_gpus: FreeGpus, row: int, shut: Set[str]
) -> tuple[GpuId, ...] | None:
    """Find idle GPUs for the column, preferring those its jobs hold; None if it has to wait."""
    stock, demand = layout.stock, board.demand(row)
    bundle = board.inputs.candidates.bundles[row]
    if not shut or board.inputs.preemptions_max is None:
        for job in bundle.jobs:
            now = board.inputs.held.get(job)
            if now is None or now.bundle[1:] != bundle[1:] or not free_gpus.has(now.gpus):
                continue
            if layout.charge(row, now.gpus):
                return now.gpus
    gpus = free_gpus.find(board.widths[row], demand or NOTHING, stock, shut)
    if gpus is not None and stock is not None:
        stock.charge(demand, gpus)
    return gpus


def _update_skipped(board: Board, order: Sequence[int], choice: Choice, layout: Layout) -> None:
    """Add gangs that were chosen but got no place to the skipped ones, and remove those that got one now."""
    bundles = board.inputs.candidates.bundles
    skipped = {row for row in (*choice.skipped, *layout.refused) if bundles[row] not in layout.placements}
    choice.skipped = [
        row for row in order if row in skipped and board.entitled[row] and board.widths[row] > 1
    ]
