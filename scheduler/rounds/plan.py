"""Plan a round: rank → select → place → move to data.

If a gang that has waited finds no place, repeat with GPUs held back for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scheduler.rounds.fill import fill
from scheduler.rounds.inputs import Held, RoundInputs, RoundPlan
from scheduler.rounds.limit import jobs_to_keep
from scheduler.rounds.lookup import Board
from scheduler.rounds.near_data import move_to_data
from scheduler.rounds.pins import Pins
from scheduler.rounds.place import Layout, place
from scheduler.rounds.rank import rank
from scheduler.rounds.resources import NOTHING
from scheduler.rounds.select import Choice, has_waited, select


def plan_round(inputs: RoundInputs) -> RoundPlan:
    """Plan a round: which columns run, and on which GPUs. The same inputs always give the same plan."""
    board = Board.of(inputs)
    order: list[int] = rank(board).tolist()
    pinned = {job: holding for job, holding in inputs.held.items() if holding.pinned}
    choice, layout = _arrange(board, order, pinned)
    keep = jobs_to_keep(board, order, layout.placements)
    if keep:
        choice, layout = _arrange(board, order, pinned | keep)
    if inputs.cached_bytes:
        move_to_data(board, layout, choice.reserved)
    bundles = inputs.candidates.bundles
    return RoundPlan(
        number=inputs.number,
        placements=layout.placements,
        reserved={inputs.worker_types[kind]: bundles[row] for kind, row in choice.reserved.items()},
        skipped=tuple(bundles[row] for row in choice.skipped),
    )


def _arrange(board: Board, order: Sequence[int], pinned: Mapping[str, Held]) -> tuple[Choice, Layout]:
    """Select columns and place them. Repeat with GPUs held back if a gang that has waited long finds no place."""
    pins = Pins(board, pinned)
    choice = select(board, order, pins)
    layout = place(board, choice.rows, pins)
    unplaceable = {row for row in layout.refused if board.entitled[row] and board.widths[row] > 1}
    closed_nodes: frozenset[str] = frozenset()
    if unplaceable and any(has_waited(board, row) for row in unplaceable):
        pins = Pins(board, pinned)
        choice = select(board, order, pins, unplaceable=unplaceable)
        closed_nodes = _held_back(board, choice, unplaceable)
        layout = place(board, choice.rows, pins, closed_nodes)
    if layout.refused or choice.reserved:
        fill(board, order, choice, layout, closed_nodes | _held_back(board, choice, choice.reserved.values()))
    return choice, layout


def _held_back(board: Board, choice: Choice, rows: Collection[int]) -> frozenset[str]:
    """Return the nodes that take no newcomers because their GPUs are held back for one of these columns."""
    closed_nodes: set[str] = set()
    for kind, row in choice.reserved.items():
        if row in rows:
            demand = board.demand(row) or NOTHING
            closed_nodes.update(node.name for node in board.sites[kind].nodes if demand.admits(node))
    return frozenset(closed_nodes)
