"""Place columns on GPUs: incumbents stay, newcomers get as few nodes as possible, and few jobs have to move for them.

1. An incumbent of the same type and width keeps its GPUs, also when its packed partner comes or goes.
2. Newcomers that need more than GPUs choose first, then gangs from the widest down, then single GPUs.
3. For a gang that fits one node, but finds none with enough free GPUs, a node is cleared: see `make_room`.

A column without a place is `refused`; the plan then looks for another one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.make_room import cheapest_seats
from scheduler.rounds.pins import Pins
from scheduler.rounds.resources import Demand, Stock


class Layout:
    """The placements of a round while they are being made."""

    def __init__(self, board: Board, pins: Pins, shut: Set[str]) -> None:
        """Begin with the placements of pinned jobs. `shut`: names of nodes that take no newcomers."""
        self.board = board
        self.placements: dict[Bundle, tuple[GpuId, ...]] = dict(pins.placements)
        self.busy: set[GpuId] = set(pins.gpus)
        self.shut = shut
        self.staying: dict[int, tuple[GpuId, ...]] = {}
        self.refused: list[int] = []
        self.stock: Stock | None = (pins.stock or Stock(board.inputs.nodes)) if board.picky else None

    def stay(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """Keep rows on their GPUs where possible; return the rows that still need a place, by worker type."""
        bundles, stays, second = self.board.inputs.candidates.bundles, self.board.stays, self.board.second
        busy, placements, staying, picky = self.busy, self.placements, self.staying, self.board.picky
        crowded = bool(busy) or self.board.crowded
        fresh: dict[int, list[int]] = {}
        for row in rows:
            gpus = stays.get(row)
            if (
                gpus is None
                or (crowded and not busy.isdisjoint(gpus))
                or (picky and not self.charge(row, gpus))
            ):
                gpus = None if second[row] == NOBODY else self._beside(row)
            if gpus is None:
                fresh.setdefault(self.board.kinds[row], []).append(row)
            else:
                placements[bundles[row]] = staying[row] = gpus
                if crowded:
                    busy.update(gpus)
        busy.update(chain.from_iterable(staying.values()))
        return fresh

    def _beside(self, row: int) -> tuple[GpuId, ...] | None:
        """Return GPUs that one job of a pair holds and the other can join; None if neither can stay."""
        board = self.board
        bundle = board.inputs.candidates.bundles[row]
        for job in bundle.jobs:
            now = board.inputs.held.get(job)
            if (
                now is not None
                and now.bundle[1:] == bundle[1:]
                and self.busy.isdisjoint(now.gpus)
                and board.sites[board.kinds[row]].gpus.issuperset(now.gpus)
                and self.charge(row, now.gpus)
            ):
                return now.gpus
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
        """Return the present free GPUs of a worker type."""
        return FreeGpus(self.board.sites[kind].without(self.shut), self.busy)

    def charge(self, row: int, gpus: tuple[GpuId, ...]) -> bool:
        """Charge the nodes of these GPUs for what the column needs; return False if they lack it."""
        if self.stock is None:
            return True
        demand = self.board.demand(row)
        if demand is not None:
            if not self.stock.fits(demand, gpus):
                return False
            self.stock.charge(demand, gpus)
        return True


def place(board: Board, rows: Sequence[int], pins: Pins, shut: Set[str] = frozenset()) -> Layout:
    """Give every chosen column its GPUs. `rows`: best first."""
    layout, bundles = Layout(board, pins, shut), board.inputs.candidates.bundles
    for kind, fresh in layout.stay(rows).items():
        free_gpus = layout.free_gpus(kind)
        if board.picky:
            fresh = _seat_picky(layout, free_gpus, kind, fresh, rows)
        gangs = [row for row in fresh if board.widths[row] > 1]
        singles = [row for row in fresh if board.widths[row] == 1]
        if gangs:
            singles += _seat_gangs(layout, free_gpus, kind, gangs)
        gpus = free_gpus.singles(len(singles))
        for row, gpu in zip(singles, gpus, strict=False):
            layout.placements[bundles[row]] = (gpu,)
        layout.busy.update(gpus)
        layout.refused += singles[len(gpus) :]
    return layout


def _seat_gangs(layout: Layout, free_gpus: FreeGpus, kind: int, gangs: list[int]) -> list[int]:
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
        # A node has room for at most one of these, so place them together.
        while waiting and top <= widest < 2 * max(waiting):
            group += waiting.pop(max(waiting))
        for row in _seat_group(layout, free_gpus, kind, group):
            if widths[row] == 1:
                singles.append(row)
            else:
                waiting.setdefault(widths[row], []).append(row)
    return singles


def _seat_group(layout: Layout, free_gpus: FreeGpus, kind: int, group: list[int]) -> list[int]:
    """Place gangs where they fit best, or else where the fewest jobs have to move; return the columns that had to move.

    Gangs that no node can take are spread over several.
    """
    widths = layout.board.widths
    seats: dict[int, tuple[GpuId, ...]] = {}
    homeless: list[int] = []
    for row in group:
        node = free_gpus.best(widths[row])
        if node is None:
            homeless.append(row)
        else:
            seats[row] = free_gpus.take(node, widths[row])
    moved: list[int] = []
    if homeless and len({widths[row] for row in group}) > 1:
        homeless = group
        for gpus in seats.values():
            free_gpus.give_back(gpus)
        seats = {}
    while homeless:
        cheapest = cheapest_seats(
            layout.board, free_gpus, layout.staying, kind, [widths[row] for row in homeless]
        )
        for index, (node, movers) in cheapest.items():
            for mover in movers:
                free_gpus.give_back(layout.lift(mover))
                moved.append(mover)
            seats[homeless[index]] = free_gpus.take(node, widths[homeless[index]])
        homeless = [row for index, row in enumerate(homeless) if index not in cheapest]
        if not cheapest:
            break
    for row in homeless:
        spread = free_gpus.spread(widths[row])
        if spread is None:
            layout.refused.append(row)
        else:
            seats[row] = spread
    for row, gpus in seats.items():
        layout.put(row, gpus)
    return moved


def _seat_picky(
    layout: Layout, free_gpus: FreeGpus, kind: int, fresh: list[int], rows: Sequence[int]
) -> list[int]:
    """Place columns that need more than GPUs, the widest first; return the others, with those that moved for them."""
    board = layout.board
    stock = layout.stock
    assert stock is not None
    demands = {row: demand for row in fresh if (demand := board.demand(row)) is not None}
    others = [row for row in fresh if row not in demands]
    for row in sorted(demands, key=lambda row: -board.widths[row]):
        demand = demands[row]
        gpus = free_gpus.find(board.widths[row], demand, stock)
        if gpus is None:
            movers = _make_room(layout, free_gpus, kind, row, demand, rows)
            gpus = free_gpus.find(board.widths[row], demand, stock)
            for mover in movers:
                (layout.refused if board.demand(mover) is not None else others).append(mover)
        if gpus is None:
            layout.refused.append(row)
            continue
        free_gpus.take_these(gpus)
        stock.charge(demand, gpus)
        layout.put(row, gpus)
    return others


def _make_room(
    layout: Layout, free_gpus: FreeGpus, kind: int, row: int, demand: Demand, rows: Sequence[int]
) -> list[int]:
    """Lift columns that can move or rank lower until the column finds a place; return those that stay lifted."""
    board = layout.board
    stock = layout.stock
    assert stock is not None
    rank = {other: number for number, other in enumerate(rows)}
    may_move = [
        (board.demand(other) is not None, -rank[other], other)
        for other, gpus in layout.staying.items()
        if board.kinds[other] == kind
        and (board.demand(other) is None or rank[other] > rank[row])
        and all(free_gpus.knows(gpu) for gpu in gpus)
        and (demand.nodes is None or any(free_gpus.name_of(gpu) in demand.nodes for gpu in gpus))
    ]
    lifted: list[tuple[int, tuple[GpuId, ...]]] = []
    for _, _, other in sorted(may_move):
        gpus = layout.lift(other)
        free_gpus.give_back(gpus)
        lifted.append((other, gpus))
        if free_gpus.find(board.widths[row], demand, stock) is not None:
            break
    fits = free_gpus.find(board.widths[row], demand, stock) is not None
    for other, gpus in reversed(lifted[:-1] if fits else lifted):
        free_gpus.take_these(gpus)
        if fits and free_gpus.find(board.widths[row], demand, stock) is None:
            free_gpus.give_back(gpus)
            continue
        stock.charge(board.demand(other), gpus)
        layout.put(other, gpus)
        layout.staying[other] = gpus
        lifted = [column for column in lifted if column[0] != other]
    return [other for other, _ in lifted]
