"""On which GPUs: who runs on stays where it is, newcomers come on as few nodes as fit, few have to move for them.

1. An incumbent of the same type and width keeps its GPUs, also when its packed partner comes or goes.
2. Newcomers that ask for more than GPUs choose first, then gangs from the widest down, then single GPUs.
3. A gang that fits one node, but finds none with enough free GPUs, has one cleared: see `clear`.

A column without a place is `refused`; the plan then looks for somebody else.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.free_gpus import Floor
from scheduler.rounds.inputs import NOBODY
from scheduler.rounds.lookup import Board
from scheduler.rounds.make_room import cheapest_seats
from scheduler.rounds.pins import Pins
from scheduler.rounds.resources import Demand, Stock


class Layout:
    """Who is where, as it grows."""

    def __init__(self, board: Board, pins: Pins, shut: Set[str]) -> None:
        """`shut`: names of nodes that take no newcomers."""
        self.board = board
        self.placements: dict[Bundle, tuple[GpuId, ...]] = dict(pins.placements)
        self.taken: set[GpuId] = set(pins.gpus)
        self.shut = shut
        self.staying: dict[int, tuple[GpuId, ...]] = {}
        self.refused: list[int] = []
        self.stock: Stock | None = (pins.stock or Stock(board.inputs.nodes)) if board.picky else None

    def stay(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """Renew in place; the rows that have to find a place, by worker type."""
        bundles, stays, second = self.board.inputs.candidates.bundles, self.board.stays, self.board.second
        taken, placements, staying, picky = self.taken, self.placements, self.staying, self.board.picky
        crowded = bool(taken) or self.board.crowded
        fresh: dict[int, list[int]] = {}
        for row in rows:
            gpus = stays.get(row)
            if (
                gpus is None
                or (crowded and not taken.isdisjoint(gpus))
                or (picky and not self.charge(row, gpus))
            ):
                gpus = None if second[row] == NOBODY else self._beside(row)
            if gpus is None:
                fresh.setdefault(self.board.kinds[row], []).append(row)
            else:
                placements[bundles[row]] = staying[row] = gpus
                if crowded:
                    taken.update(gpus)
        taken.update(chain.from_iterable(staying.values()))
        return fresh

    def _beside(self, row: int) -> tuple[GpuId, ...] | None:
        """The GPUs of one job of a pair on which the other joins it; None: neither can stay."""
        board = self.board
        bundle = board.inputs.candidates.bundles[row]
        for job in bundle.jobs:
            now = board.inputs.held.get(job)
            if (
                now is not None
                and now.bundle[1:] == bundle[1:]
                and self.taken.isdisjoint(now.gpus)
                and board.sites[board.kinds[row]].gpus.issuperset(now.gpus)
                and self.charge(row, now.gpus)
            ):
                return now.gpus
        return None

    def put(self, row: int, gpus: tuple[GpuId, ...]) -> None:
        """This column runs here."""
        self.placements[self.board.inputs.candidates.bundles[row]] = gpus
        self.taken.update(gpus)

    def lift(self, row: int) -> tuple[GpuId, ...]:
        """Take a column off its GPUs."""
        gpus = self.placements.pop(self.board.inputs.candidates.bundles[row])
        self.staying.pop(row, None)
        self.taken.difference_update(gpus)
        if self.stock is not None:
            self.stock.charge(self.board.demand(row), gpus, -1)
        return gpus

    def floor(self, kind: int) -> Floor:
        """The nodes of a worker type as they are now."""
        return Floor(self.board.sites[kind].without(self.shut), self.taken)

    def charge(self, row: int, gpus: tuple[GpuId, ...]) -> bool:
        """Take what the column needs from the nodes of these GPUs, if it is there."""
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
        floor = layout.floor(kind)
        if board.picky:
            fresh = _seat_picky(layout, floor, kind, fresh, rows)
        gangs = [row for row in fresh if board.widths[row] > 1]
        singles = [row for row in fresh if board.widths[row] == 1]
        if gangs:
            singles += _seat_gangs(layout, floor, kind, gangs)
        gpus = floor.singles(len(singles))
        for row, gpu in zip(singles, gpus, strict=False):
            layout.placements[bundles[row]] = (gpu,)
        layout.taken.update(gpus)
        layout.refused += singles[len(gpus) :]
    return layout


def _seat_gangs(layout: Layout, floor: Floor, kind: int, gangs: list[int]) -> list[int]:
    """Place gangs from the widest down; the single-GPU columns that had to move for them."""
    widths = layout.board.widths
    waiting: dict[int, list[int]] = {}
    for row in gangs:
        waiting.setdefault(widths[row], []).append(row)
    widest = max(len(node.gpus) for node in layout.board.sites[kind].nodes)
    singles: list[int] = []
    while waiting:
        top = max(waiting)
        group = waiting.pop(top)
        while waiting and top <= widest < 2 * max(
            waiting
        ):  # at most one of these per node: judge them together
            group += waiting.pop(max(waiting))
        for row in _seat_group(layout, floor, kind, group):
            if widths[row] == 1:
                singles.append(row)
            else:
                waiting.setdefault(widths[row], []).append(row)
    return singles


def _seat_group(layout: Layout, floor: Floor, kind: int, group: list[int]) -> list[int]:
    """Place gangs that fit one node each, if any does: where they fit best, else where the fewest have to move."""
    widths = layout.board.widths
    seats: dict[int, tuple[GpuId, ...]] = {}
    homeless: list[int] = []
    for row in group:
        node = floor.best(widths[row])
        if node is None:
            homeless.append(row)
        else:
            seats[row] = floor.take(node, widths[row])
    moved: list[int] = []
    if homeless and len({widths[row] for row in group}) > 1:
        homeless = group
        for gpus in seats.values():
            floor.give_back(gpus)
        seats = {}
    while homeless:
        found = cheapest_seats(layout.board, floor, layout.staying, kind, [widths[row] for row in homeless])
        for index, (node, movers) in found.items():
            for mover in movers:
                floor.give_back(layout.lift(mover))
                moved.append(mover)
            seats[homeless[index]] = floor.take(node, widths[homeless[index]])
        homeless = [row for index, row in enumerate(homeless) if index not in found]
        if not found:
            break
    for row in homeless:
        spread = floor.spread(widths[row])
        if spread is None:
            layout.refused.append(row)
        else:
            seats[row] = spread
    for row, gpus in seats.items():
        layout.put(row, gpus)
    return moved


def _seat_picky(layout: Layout, floor: Floor, kind: int, fresh: list[int], rows: Sequence[int]) -> list[int]:
    """Place those that ask for more than GPUs, the widest first; the others, with those that moved for them."""
    board = layout.board
    stock = layout.stock
    assert stock is not None
    demands = {row: demand for row in fresh if (demand := board.demand(row)) is not None}
    others = [row for row in fresh if row not in demands]
    for row in sorted(demands, key=lambda row: -board.widths[row]):
        demand = demands[row]
        gpus = floor.find(board.widths[row], demand, stock)
        if gpus is None:
            movers = _make_room(layout, floor, kind, row, demand, rows)
            gpus = floor.find(board.widths[row], demand, stock)
            for mover in movers:
                (layout.refused if board.demand(mover) is not None else others).append(mover)
        if gpus is None:
            layout.refused.append(row)
            continue
        floor.take_these(gpus)
        stock.charge(demand, gpus)
        layout.put(row, gpus)
    return others


def _make_room(
    layout: Layout, floor: Floor, kind: int, row: int, demand: Demand, rows: Sequence[int]
) -> list[int]:
    """Lift columns that can go elsewhere or rank lower, until the column finds a place; nobody if it never does."""
    board = layout.board
    stock = layout.stock
    assert stock is not None
    rank = {one: number for number, one in enumerate(rows)}
    may_move = [
        (board.demand(other) is not None, -rank[other], other)
        for other, gpus in layout.staying.items()
        if board.kinds[other] == kind
        and (board.demand(other) is None or rank[other] > rank[row])
        and all(floor.knows(gpu) for gpu in gpus)
        and (demand.nodes is None or any(floor.name_of(gpu) in demand.nodes for gpu in gpus))
    ]
    lifted: list[tuple[int, tuple[GpuId, ...]]] = []
    for _, _, other in sorted(may_move):
        gpus = layout.lift(other)
        floor.give_back(gpus)
        lifted.append((other, gpus))
        if floor.find(board.widths[row], demand, stock) is not None:
            break
    fits = floor.find(board.widths[row], demand, stock) is not None
    for other, gpus in reversed(lifted[:-1] if fits else lifted):
        floor.take_these(gpus)
        if fits and floor.find(board.widths[row], demand, stock) is None:
            floor.give_back(gpus)
            continue
        stock.charge(board.demand(other), gpus)
        layout.put(other, gpus)
        layout.staying[other] = gpus
        lifted = [one for one in lifted if one[0] != other]
    return [other for other, _ in lifted]
