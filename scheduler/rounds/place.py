"""Place columns on GPUs: incumbents stay, newcomers get as few nodes as possible, and few jobs have to move for them.

1. An incumbent (a running job) of the same type and width keeps its GPUs, even if a partner joins or leaves.
2. Newcomers that need more than GPUs choose first, those with the largest granule before others, then gangs from the
   widest down, then single GPUs. In this order, a smaller granule that divides a larger one never lacks a place because
   of it: the larger one leaves whole smaller ones.
3. If a gang fits one node, but no node has enough free GPUs, a node is cleared for it: see `make_room`.

A column that finds no place is added to `refused`; `plan` then lets other columns have the GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from itertools import chain

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.inputs import NO_ROW
from scheduler.rounds.lookup import Board
from scheduler.rounds.make_room import nodes_to_clear
from scheduler.rounds.pins import Pins
from scheduler.rounds.resources import NOTHING, Demand, Stock


class Layout:
    """The placements made so far in a round, and the resources left."""

    def __init__(self, board: Board, pins: Pins, closed_nodes: Set[str]) -> None:
        """Start from the placements of pinned jobs. `closed_nodes`: names of nodes that take no newcomers."""
        self.board = board
        self.placements: dict[Bundle, tuple[GpuId, ...]] = dict(pins.placements)
        self.busy: set[GpuId] = set(pins.gpus)
        self.closed_nodes = closed_nodes
        # By column: the GPUs on which its jobs, or one of them, run already.
        self.staying: dict[int, tuple[GpuId, ...]] = {}
        self.refused: list[int] = []
        self.stock: Stock | None = (pins.stock or Stock(board.inputs.nodes)) if board.any_needs else None

    def keep_incumbents(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """Keep columns on their GPUs where possible; return the columns that still need a place, by worker type."""
        bundles, stays, second = self.board.inputs.candidates.bundles, self.board.stays, self.board.second
        busy, placements, staying, any_needs = self.busy, self.placements, self.staying, self.board.any_needs
        crowded = bool(busy) or self.board.crowded
        fresh: dict[int, list[int]] = {}
        for row in rows:
            gpus = stays.get(row)
            if (
                gpus is None
                or (crowded and not busy.isdisjoint(gpus))
                or (any_needs and not self.charge(row, gpus))
            ):
                gpus = None if second[row] == NO_ROW else self._joinable_gpus(row)
            if gpus is None:
                fresh.setdefault(self.board.kinds[row], []).append(row)
            else:
                placements[bundles[row]] = staying[row] = gpus
                if crowded:
                    busy.update(gpus)
        busy.update(chain.from_iterable(staying.values()))
        return fresh

    def _joinable_gpus(self, row: int) -> tuple[GpuId, ...] | None:
        """Return GPUs that one job of the pair holds and that both jobs can use; None if there are none."""
        board = self.board
        bundle = board.inputs.candidates.bundles[row]
        for job in bundle.jobs:
            holding = board.inputs.held.get(job)
            if (
                holding is not None
                and holding.bundle[1:] == bundle[1:]
                and self.busy.isdisjoint(holding.gpus)
                and board.sites[board.kinds[row]].gpus.issuperset(holding.gpus)
                and self.charge(row, holding.gpus)
            ):
                return holding.gpus
        return None

    def put(self, row: int, gpus: tuple[GpuId, ...]) -> None:
        """Place a column on these GPUs."""
        self.placements[self.board.inputs.candidates.bundles[row]] = gpus
        self.busy.update(gpus)

    def lift(self, row: int) -> tuple[GpuId, ...]:
        """Take a column off its GPUs and return them."""
        gpus = self.placements.pop(self.board.inputs.candidates.bundles[row])
        self.staying.pop(row, None)
        self.busy.difference_update(gpus)
        if self.stock is not None:
            self.stock.charge(self.board.demand(row), gpus, -1)
        return gpus

    def free_gpus(self, kind: int) -> FreeGpus:
        """Return the GPUs of a worker type that are still free."""
        return FreeGpus(self.board.sites[kind].without(self.closed_nodes), self.busy)

    def charge(self, row: int, gpus: tuple[GpuId, ...]) -> bool:
        """Charge the nodes of these GPUs for the needs of the column; return False if they lack resources."""
        if self.stock is None:
            return True
        demand = self.board.demand(row)
        if demand is not None:
            if not self.stock.fits(demand, gpus):
                return False
            self.stock.charge(demand, gpus)
        return True


def place(board: Board, rows: Sequence[int], pins: Pins, closed_nodes: Set[str] = frozenset()) -> Layout:
    """Place every selected column on GPUs, or refuse it. `rows`: best first."""
    layout, bundles = Layout(board, pins, closed_nodes), board.inputs.candidates.bundles
    for kind, fresh in layout.keep_incumbents(rows).items():
        free_gpus = layout.free_gpus(kind)
        if board.any_needs:
            fresh = _place_with_needs(layout, free_gpus, kind, fresh, rows)
        gangs = [row for row in fresh if board.widths[row] > 1]
        singles = [row for row in fresh if board.widths[row] == 1]
        if gangs:
            singles += _place_gangs(layout, free_gpus, kind, gangs)
        gpus = free_gpus.singles(len(singles))
        for row, gpu in zip(singles, gpus, strict=False):
            layout.placements[bundles[row]] = (gpu,)
        layout.busy.update(gpus)
        layout.refused += singles[len(gpus) :]
    return layout


def _place_gangs(layout: Layout, free_gpus: FreeGpus, kind: int, gangs: list[int]) -> list[int]:
    """Place gangs from the widest down; return the single-GPU columns that had to move for them."""
    widths = layout.board.widths
    waiting: dict[int, list[int]] = {}
    for row in gangs:
        waiting.setdefault(widths[row], []).append(row)
    widest = max(len(node.gpus) for node in layout.board.sites[kind].nodes)
    singles: list[int] = []
    while waiting:
        top = max(waiting)
        group = waiting.pop(top)
        # Each node takes at most one of these gangs, so place them together.
        while waiting and top <= widest < 2 * max(waiting):
            group += waiting.pop(max(waiting))
        for row in _place_group(layout, free_gpus, kind, group):
            if widths[row] == 1:
                singles.append(row)
            else:
                waiting.setdefault(widths[row], []).append(row)
    return singles


def _place_group(layout: Layout, free_gpus: FreeGpus, kind: int, group: list[int]) -> list[int]:
    """Place gangs where they fit best, else where the fewest jobs have to move; return the columns that have to move.

    A gang for which no node can be cleared is spread over several nodes.
    """
    widths = layout.board.widths
    gpus_of: dict[int, tuple[GpuId, ...]] = {}
    unplaced: list[int] = []
    for row in group:
        node = free_gpus.tightest_node(widths[row])
        if node is None:
            unplaced.append(row)
        else:
            gpus_of[row] = free_gpus.take(node, widths[row])
    moved: list[int] = []
    # Gangs of different widths compete for the nodes, so let `nodes_to_clear` decide about all of them at once.
    if unplaced and len({widths[row] for row in group}) > 1:
        unplaced = group
        for gpus in gpus_of.values():
            free_gpus.give_back(gpus)
        gpus_of = {}
    while unplaced:
        cleared = nodes_to_clear(
            layout.board, free_gpus, layout.staying, kind, [widths[row] for row in unplaced]
        )
        for index, (node, movers) in cleared.items():
            for mover in movers:
                free_gpus.give_back(layout.lift(mover))
                moved.append(mover)
            gpus_of[unplaced[index]] = free_gpus.take(node, widths[unplaced[index]])
        unplaced = [row for index, row in enumerate(unplaced) if index not in cleared]
        if not cleared:
            break
    for row in unplaced:
        spread = free_gpus.spread(widths[row])
        if spread is None:
            layout.refused.append(row)
        else:
            gpus_of[row] = spread
    for row, gpus in gpus_of.items():
        layout.put(row, gpus)
    return moved


def _place_with_needs(
    layout: Layout, free_gpus: FreeGpus, kind: int, fresh: list[int], rows: Sequence[int]
) -> list[int]:
    """Place columns that need more than GPUs, the hardest first; return those that need only GPUs and have none yet."""
    board = layout.board
    stock = layout.stock
    assert stock is not None
    others = [row for row in fresh if board.demand(row) is None]
    waiting = deque(_hardest_first(board, [row for row in fresh if board.demand(row) is not None]))
    while waiting:
        row = waiting.popleft()
        demand = board.demand(row) or NOTHING
        gpus = free_gpus.find(board.widths[row], demand, stock)
        if gpus is None:
            movers = _make_room(layout, free_gpus, kind, row, demand, rows)
            gpus = free_gpus.find(board.widths[row], demand, stock)
            others += [mover for mover in movers if board.demand(mover) is None]
            # No column is moved twice: only those that have stayed since the last round are moved.
            waiting.extendleft(
                _hardest_first(board, [mover for mover in movers if board.demand(mover) is not None])[::-1]
            )
        if gpus is None:
            layout.refused.append(row)
            continue
        free_gpus.take_these(gpus)
        stock.charge(demand, gpus)
        layout.put(row, gpus)
    return others


def _hardest_first(board: Board, rows: Sequence[int]) -> list[int]:
    """Return these columns, those with the largest granule first, and of these the widest."""
    return sorted(
        rows, key=lambda row: ((board.demand(row) or NOTHING).granule, board.widths[row]), reverse=True
    )


def _make_room(
    layout: Layout, free_gpus: FreeGpus, kind: int, row: int, demand: Demand, rows: Sequence[int]
) -> list[int]:
    """Take columns off their GPUs until the column `row` has a place; return the columns that lost their GPUs.

    Columns that need only GPUs may be displaced, and columns of worse rank. A column of better rank that needs no CPUs,
    memory or certain nodes may be displaced if it finds another place. Columns that turn out not to be in the way are
    put back.
    """
    board = layout.board
    rank = {other: number for number, other in enumerate(rows)}
    lifted: list[tuple[int, tuple[GpuId, ...]]] = []
    for other in _may_move(layout, free_gpus, kind, row, demand, rank):
        gpus = layout.lift(other)
        free_gpus.give_back(gpus)
        lifted.append((other, gpus))
        if free_gpus.find(board.widths[row], demand, layout.stock) is not None:
            break
    fits = free_gpus.find(board.widths[row], demand, layout.stock) is not None
    for column in reversed(lifted[:-1] if fits else lifted):
        free_gpus.take_these(column[1])
        if fits and free_gpus.find(board.widths[row], demand, layout.stock) is None:
            free_gpus.give_back(column[1])
            continue
        _put_back(layout, *column)
        lifted.remove(column)
    better = [other for other, _ in lifted if board.demand(other) is not None and rank[other] < rank[row]]
    if better and not _find_places(layout, kind, [row, *_hardest_first(board, better)]):
        for column in lifted:
            free_gpus.take_these(column[1])
            _put_back(layout, *column)
        lifted = []
    return [other for other, _ in lifted]


def _may_move(
    layout: Layout, free_gpus: FreeGpus, kind: int, row: int, demand: Demand, rank: dict[int, int]
) -> list[int]:
    """Return the columns that may be displaced for the column `row`, in the order in which to try them.

    For a granule, the nodes that lack the fewest GPUs come first; otherwise, the columns of worst rank.
    """
    board = layout.board
    order: list[tuple[int, int, int, int, int]] = []
    for other, gpus in layout.staying.items():
        if board.kinds[other] != kind or not all(free_gpus.contains(gpu) for gpu in gpus):
            continue
        nodes = {free_gpus.node_of(gpu) for gpu in gpus}
        if not any(demand.admits(free_gpus.nodes[node]) for node in nodes):
            continue
        own = board.demand(other)
        is_worse = rank[other] > rank[row]
        if own is not None and not is_worse and own[:3] != NOTHING[:3]:
            continue
        lacking, first = 0, 0
        if demand.granule > 1:
            lacking, first = min(
                (demand.granule - len(free_gpus.free[node]) % demand.granule, node) for node in nodes
            )
        order.append((0 if own is None else 1 if is_worse else 2, lacking, first, -rank[other], other))
    return [other for *_, other in sorted(order)]


def _put_back(layout: Layout, row: int, gpus: tuple[GpuId, ...]) -> None:
    """Put a column that was lifted back on its GPUs."""
    assert layout.stock is not None
    layout.stock.charge(layout.board.demand(row), gpus)
    layout.put(row, gpus)
    layout.staying[row] = gpus


def _find_places(layout: Layout, kind: int, rows: Sequence[int]) -> bool:
    """Whether these columns, of which only the first needs CPUs, memory or certain nodes, all have a place now."""
    free_gpus = layout.free_gpus(kind)
    for row in rows:
        demand = layout.board.demand(row) or NOTHING
        gpus = free_gpus.find(layout.board.widths[row], demand, layout.stock)
        if gpus is None:
            return False
        free_gpus.take_these(gpus)
    return True
