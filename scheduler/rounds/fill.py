"""After the placement, give idle GPUs to columns that can use them without any move. Better ranks choose first.

This is needed only if a selected column was refused a place, or GPUs are held back for a gang. A job that is not pinned
may continue on GPUs that are held back, because it can still be moved at the next boundary. If preemptions are limited,
it may not: otherwise the gang would never get enough GPUs at once.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from scheduler.model.lease import GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.inputs import NO_ROW
from scheduler.rounds.lookup import Board
from scheduler.rounds.place import Layout
from scheduler.rounds.quota import Tally
from scheduler.rounds.resources import NOTHING
from scheduler.rounds.select import Choice


def fill(board: Board, order: Sequence[int], choice: Choice, layout: Layout, closed_nodes: Set[str]) -> None:
    """Place columns on idle GPUs, without moving any other column. `closed_nodes`: nodes with GPUs held back."""
    layout.closed_nodes = frozenset()
    idle = [layout.free_gpus(kind) for kind in range(len(board.sites))]
    idle_count = [sum(map(len, free_gpus.free)) for free_gpus in idle]
    names = board.inputs.jobs
    tally, bundles = Tally.of(board, layout.placements), board.inputs.candidates.bundles
    busy = {job for bundle in layout.placements for job in bundle.jobs}
    # Worker types whose reserved column ranks above the current row.
    below: set[int] = set()
    for row in order:
        kind, width = board.kinds[row], board.widths[row]
        if idle_count[kind] >= width:
            members = {names[job] for job in (board.first[row], board.second[row]) if job != NO_ROW}
            admitted = tally is None or tally.fits(members, bundles[row])
            if admitted and busy.isdisjoint(members):
                gpus = _find_gpus(
                    board, layout, idle[kind], row, closed_nodes if kind in below else frozenset()
                )
                if gpus is not None:
                    idle[kind].take_these(gpus)
                    idle_count[kind] -= width
                    busy |= members
                    layout.put(row, gpus)
                    if tally is not None:
                        tally.take(members, bundles[row])
                    if choice.reserved.get(kind) == row:
                        del choice.reserved[kind]
        if choice.reserved.get(kind) == row:
            below.add(kind)
    _update_skipped(board, order, choice, layout)


def _find_gpus(
    board: Board, layout: Layout, free_gpus: FreeGpus, row: int, closed_nodes: Set[str]
) -> tuple[GpuId, ...] | None:
    """Return idle GPUs for the column, if possible the GPUs that its jobs hold; None if it has to wait."""
    stock, demand = layout.stock, board.demand(row)
    bundle = board.inputs.candidates.bundles[row]
    if not closed_nodes or board.inputs.preemptions_max is None:
        for job in bundle.jobs:
            holding = board.inputs.held.get(job)
            if holding is None or holding.bundle[1:] != bundle[1:] or not free_gpus.has(holding.gpus):
                continue
            if layout.charge(row, holding.gpus):
                return holding.gpus
    gpus = free_gpus.find(board.widths[row], demand or NOTHING, stock, closed_nodes)
    if gpus is not None and stock is not None:
        stock.charge(demand, gpus)
    return gpus


def _update_skipped(board: Board, order: Sequence[int], choice: Choice, layout: Layout) -> None:
    """Add gangs that were selected but refused to `choice.skipped`, and remove gangs that have been placed."""
    bundles = board.inputs.candidates.bundles
    skipped = {row for row in (*choice.skipped, *layout.refused) if bundles[row] not in layout.placements}
    choice.skipped = [
        row for row in order if row in skipped and board.entitled[row] and board.widths[row] > 1
    ]
