"""Choose the nodes to clear so that each gang gets a node and as few running jobs as possible move.

This is an assignment problem, gangs × nodes. The cost is the number of jobs that would have to leave the node. Among
nodes of equal cost, the one with the fewest GPUs left over is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.model.lease import GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.lookup import Board

# The cost of a node that cannot be cleared for a gang.
IMPOSSIBLE = 1e9


def nodes_to_clear(
    board: Board,
    free_gpus: FreeGpus,
    staying: Mapping[int, tuple[GpuId, ...]],
    kind: int,
    widths: Sequence[int],
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Return, by index of each gang in `widths`, a node and the columns to move off it; gangs without one are absent.

    `kind` is the gangs' worker type.
    """
    movable = _movable(board, free_gpus, staying, kind, max(widths))
    cost = np.full((len(widths), len(free_gpus.nodes)), IMPOSSIBLE)
    movers: dict[tuple[int, int], tuple[int, ...]] = {}
    for width in set(widths):
        gangs = [index for index, gang_width in enumerate(widths) if gang_width == width]
        for node, free in enumerate(free_gpus.free):
            covered = cover(
                width - len(free), [column for column in movable.get(node, ()) if column[0] < width]
            )
            if covered is not None:
                jobs, rows = covered
                movers[width, node] = rows
                # The fraction is less than one job, so it only decides between equal numbers of jobs.
                cost[gangs, node] = jobs + max(len(free) - width, 0) / 4096
    from scipy.optimize import linear_sum_assignment

    indices, nodes = linear_sum_assignment(cost)
    return {
        index: (node, movers[widths[index], node])
        for index, node in zip(indices.tolist(), nodes.tolist(), strict=True)
        if cost[index, node] < IMPOSSIBLE
    }


def cover(deficit: int, occupants: Sequence[tuple[int, int, int]]) -> tuple[int, tuple[int, ...]] | None:
    """Choose columns that free `deficit` GPUs with the fewest jobs; return the number of jobs, and the columns.

    Each of the `occupants` is a column: its number of GPUs, its number of jobs, and its row. Return None if all of them
    together free too few GPUs.
    """
    if deficit <= 0:
        return 0, ()
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ()), *[None] * deficit]
    for width, jobs, row in occupants:
        for freed_before in range(deficit - 1, -1, -1):
            so_far = best[freed_before]
            if so_far is not None:
                freed = min(freed_before + width, deficit)
                best_here = best[freed]
                if best_here is None or so_far[0] + jobs < best_here[0]:
                    best[freed] = (so_far[0] + jobs, (*so_far[1], row))
    return best[deficit]


def _movable(
    board: Board, free_gpus: FreeGpus, staying: Mapping[int, tuple[GpuId, ...]], kind: int, width: int
) -> dict[int, list[tuple[int, int, int]]]:
    """Return, by node, the columns that could move: narrower than `width`, on one node only, and needing only GPUs."""
    movable: dict[int, list[tuple[int, int, int]]] = {}
    bundles = board.inputs.candidates.bundles
    for row, gpus in staying.items():
        if (
            board.kinds[row] != kind
            or board.widths[row] >= width
            or not all(free_gpus.contains(gpu) for gpu in gpus)
        ):
            continue
        nodes = {free_gpus.node_of(gpu) for gpu in gpus}
        if len(nodes) == 1 and board.demand(row) is None:
            movable.setdefault(nodes.pop(), []).append((len(gpus), len(bundles[row].jobs), row))
    return movable
