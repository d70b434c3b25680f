"""Which nodes to clear so that gangs get a node each and as few running jobs as possible have to move.

An assignment problem: gangs × nodes, at the cost of the jobs that would have to leave the node; among equals the node
on which the least is left over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from scheduler.model.lease import GpuId
from scheduler.rounds.free_gpus import Floor
from scheduler.rounds.lookup import Board

IMPOSSIBLE = 1e9


def cheapest_seats(
    board: Board, floor: Floor, staying: Mapping[int, tuple[GpuId, ...]], kind: int, widths: Sequence[int]
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """For gangs of these widths, by index: a node, and the columns to be moved off it. Gangs without one are absent."""
    movable = _movable(board, floor, staying, kind, max(widths))
    cost = np.full((len(widths), len(floor.nodes)), IMPOSSIBLE)
    movers: dict[tuple[int, int], tuple[int, ...]] = {}
    for width in set(widths):
        mine = [index for index, one in enumerate(widths) if one == width]
        for node, free in enumerate(floor.free):
            found = cover(width - len(free), [one for one in movable.get(node, ()) if one[0] < width])
            if found is not None:
                jobs, rows = found
                movers[width, node] = rows
                cost[mine, node] = jobs + max(len(free) - width, 0) / 4096
    indices, nodes = linear_sum_assignment(cost)
    return {
        index: (node, movers[widths[index], node])
        for index, node in zip(indices.tolist(), nodes.tolist(), strict=True)
        if cost[index, node] < IMPOSSIBLE
    }


def cover(deficit: int, occupants: Sequence[tuple[int, int, int]]) -> tuple[int, tuple[int, ...]] | None:
    """The fewest jobs whose columns free so many GPUs, and these columns. Occupants: (GPUs, jobs, column)."""
    if deficit <= 0:
        return 0, ()
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ()), *[None] * deficit]
    for width, jobs, row in occupants:
        for have in range(deficit - 1, -1, -1):
            so_far = best[have]
            if so_far is not None:
                reach = min(have + width, deficit)
                known = best[reach]
                if known is None or so_far[0] + jobs < known[0]:
                    best[reach] = (so_far[0] + jobs, (*so_far[1], row))
    return best[deficit]


def _movable(
    board: Board, floor: Floor, staying: Mapping[int, tuple[GpuId, ...]], kind: int, width: int
) -> dict[int, list[tuple[int, int, int]]]:
    """By node: who could go elsewhere. Narrower columns within one node, that ask for nothing but GPUs."""
    movable: dict[int, list[tuple[int, int, int]]] = {}
    bundles = board.inputs.candidates.bundles
    for row, gpus in staying.items():
        if (
            board.kinds[row] != kind
            or board.widths[row] >= width
            or not all(floor.knows(gpu) for gpu in gpus)
        ):
            continue
        nodes = {floor.node_of(gpu) for gpu in gpus}
        if len(nodes) == 1 and board.demand(row) is None:
            movable.setdefault(nodes.pop(), []).append((len(gpus), len(bundles[row].jobs), row))
    return movable
