"""A whole round on one screen: rank → select → place, repeated where a column found no place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scheduler.rounds.fill import fill
from scheduler.rounds.inputs import Held, RoundInputs, RoundPlan
from scheduler.rounds.limit import spared
from scheduler.rounds.lookup import Board
from scheduler.rounds.pins import Pins
from scheduler.rounds.place import Layout, place
from scheduler.rounds.rank import rank
from scheduler.rounds.select import Choice, has_waited, select


def plan_round(inputs: RoundInputs) -> RoundPlan:
    """Plan a round: which columns run, and on which GPUs. Pure: the same inputs give the same plan."""
    board = Board.of(inputs)
    order: list[int] = rank(board).tolist()
    pinned = {job: now for job, now in inputs.held.items() if now.pinned}
    choice, layout = _arrange(board, order, pinned)
    keep = spared(board, order, layout.placements)
    if keep:
        choice, layout = _arrange(board, order, pinned | keep)
    bundles = inputs.candidates.bundles
    return RoundPlan(
        number=inputs.number,
        placements=layout.placements,
        reserved={inputs.worker_types[kind]: bundles[row] for kind, row in choice.reserved.items()},
        skipped=tuple(bundles[row] for row in choice.skipped),
    )


def _arrange(board: Board, order: Sequence[int], pinned: Mapping[str, Held]) -> tuple[Choice, Layout]:
    """Choose columns and place them. Repeat with GPUs held back if a gang that has waited long finds no place."""
    pins = Pins(board, pinned)
    choice = select(board, order, pins)
    layout = place(board, choice.rows, pins)
    stuck = {row for row in layout.refused if board.entitled[row] and board.widths[row] > 1}
    shut: frozenset[str] = frozenset()
    if stuck and any(has_waited(board, row) for row in stuck):
        pins = Pins(board, pinned)
        choice = select(board, order, pins, closed=stuck)
        shut = _held_back(board, choice, stuck)
        layout = place(board, choice.rows, pins, shut)
    if layout.refused or choice.reserved:
        fill(board, order, choice, layout, shut | _held_back(board, choice, choice.reserved.values()))
    return choice, layout


def _held_back(board: Board, choice: Choice, rows: Collection[int]) -> frozenset[str]:
    """Return the nodes that take no newcomers, because their GPUs are held back for one of these columns."""
    shut: set[str] = set()
    for kind, row in choice.reserved.items():
        if row in rows:
            demand = board.demand(row)
            names = {node.name for node in board.sites[kind].nodes}
            shut |= names if demand is None or demand.nodes is None else names & demand.nodes
    return frozenset(shut)
