"""Move newcomers to equal places with more of their data in the cache of the node: the last step of a plan.

Before this step it is settled which columns run, which jobs lose their GPUs, and on how many nodes each gang runs. None
of that changes, because only these moves are made, each of them by newcomers, whose jobs hold no GPUs:

1. a newcomer goes to a node that is as full as its own would be without it, alone or with other newcomers of its node;
2. two newcomers that need the same change places.

No move takes a job away from its data, or from idle GPUs to such as another job has to leave first, be it that it was
asked to stop before and is still saving. So how much data a job claims to have somewhere moves no other job away from
its own, and lets none wait longer. Worker types with GPUs that are held back are left as they are: a move could take
what is held back. A round in which no node has data of a newcomer skips this step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.free_gpus import FreeGpus
from scheduler.rounds.lookup import Board
from scheduler.rounds.place import Layout
from scheduler.rounds.resources import SLACK, Demand

# How many nodes with more data are looked at for a newcomer.
NODES_MAX = 8


@dataclass(slots=True, eq=False)
class Part:
    """The GPUs of a newcomer on one node, which is an index in `FreeGpus.nodes`."""

    bundle: Bundle
    demand: Demand | None
    # For each job of the column that has data anywhere: how much each node has. Jobs with the same data share a table.
    tables: tuple[Mapping[int, float], ...]
    node: int
    gpus: tuple[GpuId, ...]


def move_to_data(board: Board, layout: Layout, reserved: Collection[int]) -> None:
    """Move newcomers to equal places with more of their data. `reserved`: worker types with GPUs that are held back."""
    held, cached_bytes = board.inputs.held, board.inputs.cached_bytes
    row_of = board.inputs.candidates.columns.row_of
    newcomers: dict[int, list[Bundle]] = {}
    for bundle in layout.placements:
        # A job may stay in a column that is no candidate any more.
        if all(job not in held for job in bundle.jobs):
            newcomers.setdefault(board.kinds[row_of[bundle]], []).append(bundle)
    leaving: frozenset[GpuId] = frozenset()
    for kind, bundles in newcomers.items():
        with_data = [bundle for bundle in bundles if any(job in cached_bytes for job in bundle.jobs)]
        if with_data and kind not in reserved:
            leaving = leaving or board.inputs.stopping.union(*[holding.gpus for holding in held.values()])
            _Moves(board, layout, kind, bundles, leaving).make(with_data)


class _Moves:
    """The moves on the nodes of one worker type."""

    def __init__(
        self, board: Board, layout: Layout, kind: int, newcomers: Sequence[Bundle], leaving: Collection[GpuId]
    ) -> None:
        self._board, self._layout, self._leaving = board, layout, leaving
        self._free = FreeGpus(board.sites[kind], layout.busy)
        # Sets of nodes to which jobs are confined: what counts as equal must be in the same sets.
        self._confines = [*{need.nodes for need in board.inputs.needs.values() if need.nodes is not None}]
        # By name of a node: the numbers of those that have it, as far as that was asked.
        self._confines_of: dict[str, frozenset[int]] = {}
        # The nodes that can take a newcomer: they have one, or idle GPUs. No move changes which ones these are.
        with_newcomers = {
            self._free.node_of(gpu) for bundle in newcomers for gpu in layout.placements[bundle]
        }
        self._open = {
            node.name: number
            for number, node in enumerate(self._free.nodes)
            if self._free.free[number] or number in with_newcomers
        }
        # By the identity of what the inputs have for a job: the same, by the numbers of these nodes.
        self._tables: dict[int, Mapping[int, float]] = {}
        # By the identities of the tables of a column: see `_ranked`.
        self._rankings: dict[tuple[int, ...], list[tuple[float, int]]] = {}
        self._parts_of: dict[Bundle, list[Part]] = {}
        self._on_node: dict[int, list[Part]] = {}
        for bundle in newcomers:
            self._parts_of[bundle] = [*self._split(bundle)]
            for part in self._parts_of[bundle]:
                self._on_node.setdefault(part.node, []).append(part)

    def _split(self, bundle: Bundle) -> Iterator[Part]:
        """Yield the parts of a column that may move. A gang on several nodes that needs more than GPUs does not."""
        by_node: dict[int, list[GpuId]] = {}
        for gpu in self._layout.placements[bundle]:
            by_node.setdefault(self._free.node_of(gpu), []).append(gpu)
        demand = self._board.demand(self._board.inputs.candidates.columns.row_of[bundle])
        if demand is None or len(by_node) == 1:
            tables = self._tables_of(bundle)
            for node, gpus in by_node.items():
                yield Part(bundle, demand, tables, node, tuple(gpus))

    def make(self, with_data: Sequence[Bundle]) -> None:
        """Make all moves of these columns, the first ones before others."""
        for bundle in with_data:
            for part in self._parts_of[bundle]:
                for node in self._better_nodes(part):
                    if self._may_go(part, node) and (self._go(part, node) or self._exchange(part, node)):
                        break

    def _tables_of(self, bundle: Bundle) -> tuple[Mapping[int, float], ...]:
        cached_bytes = self._board.inputs.cached_bytes
        by_name = [cached_bytes[job] for job in bundle.jobs if job in cached_bytes]
        for table in by_name:
            if id(table) not in self._tables:
                at = {self._open[name]: size for name, size in table.items() if name in self._open}
                self._tables[id(table)] = at
        return tuple([self._tables[id(table)] for table in by_name])

    def _better_nodes(self, part: Part) -> Iterator[int]:
        """Yield some nodes with more of the data of a part's column than its own node, those with most first."""
        here = _bytes_at(part, part.node)
        for size, node in self._ranked(part):
            if size <= here:
                return
            yield node

    def _ranked(self, part: Part) -> list[tuple[float, int]]:
        """Return the nodes that have most of the data of a part's column and can take it, by their bytes of it."""
        key = tuple([id(table) for table in part.tables])
        if key not in self._rankings:
            nodes = {node for table in part.tables for node in table}
            ranked = [(_bytes_at(part, node), node) for node in nodes]
            self._rankings[key] = nsmallest(NODES_MAX, ranked, key=lambda entry: (-entry[0], entry[1]))
        return self._rankings[key]

    def _go(self, part: Part, node: int) -> bool:
        """Move a part to free GPUs of an equal node, if possible, with other parts of its node if it needs company."""
        free = self._free.free
        width = len(free[node]) - len(free[part.node])
        if width < len(part.gpus):
            return False
        group = [part]
        for other in self._company(part, node):
            if sum(len(member.gpus) for member in group) + len(other.gpus) <= width:
                group.append(other)
        if sum(len(member.gpus) for member in group) != width or not self._are_equal(group, part.node, node):
            return False
        # Those that wait for the fewest GPUs to be left get idle ones first.
        group.sort(key=lambda member: self._left_first(member.gpus))
        gpus = sorted(free[node], key=self._leaving.__contains__)[:width]
        places: list[tuple[GpuId, ...]] = []
        for member in group:
            places.append(tuple(gpus[: len(member.gpus)]))
            del gpus[: len(member.gpus)]
            if self._left_first(places[-1]) > self._left_first(member.gpus):
                return False
        for member, new in zip(group, places, strict=True):
            self._free.take_these(new)
            self._free.give_back(member.gpus)
            self._put(member, node, new)
        return True

    def _left_first(self, gpus: Sequence[GpuId]) -> int:
        """Return how many of these GPUs another job has to leave first."""
        return sum(gpu in self._leaving for gpu in gpus)

    def _company(self, part: Part, node: int) -> list[Part]:
        """Return the other parts on the node of `part` that may go to `node` with it, those that gain most first."""
        others = [other for other in self._on_node[part.node] if other is not part]
        return sorted(
            [other for other in others if self._may_go(other, node)],
            key=lambda other: _bytes_at(other, other.node) - _bytes_at(other, node),
        )

    def _may_go(self, part: Part, node: int) -> bool:
        """Whether the column of a part has no other part on this node, and each of its jobs as much data there."""
        return all(table.get(node, 0.0) >= table.get(part.node, 0.0) for table in part.tables) and all(
            other.node != node for other in self._parts_of[part.bundle]
        )

    def _are_equal(self, group: Sequence[Part], before: int, after: int) -> bool:
        """Whether two nodes are alike, and have the same left, apart from what these parts use of the first one."""
        nodes, stock = self._free.nodes, self._layout.stock
        names = nodes[before].name, nodes[after].name
        if len(nodes[before].gpus) != len(nodes[after].gpus):
            return False
        if self._confines_with(names[0]) != self._confines_with(names[1]):
            return False
        if stock is None:
            return True
        used = [
            sum(getattr(part.demand, field) * len(part.gpus) for part in group if part.demand is not None)
            for field in ("cpus", "memory_gb")
        ]
        return all(
            rest + more <= other + SLACK and other <= rest + more + SLACK
            for rest, more, other in zip(stock.left[names[0]], used, stock.left[names[1]], strict=True)
        )

    def _confines_with(self, name: str) -> frozenset[int]:
        """Return the numbers of the sets, to which jobs are confined, that have this node."""
        if name not in self._confines_of:
            within = [number for number, confine in enumerate(self._confines) if name in confine]
            self._confines_of[name] = frozenset(within)
        return self._confines_of[name]

    def _exchange(self, part: Part, node: int) -> bool:
        """Let a part change places with the one on this node with which most is gained; return whether there is one."""
        equal = [
            other
            for other in self._on_node.get(node, ())
            # Of two columns with the same data one would lose what the other one gains.
            if other.tables != part.tables
            and (len(other.gpus), other.demand) == (len(part.gpus), part.demand)
            and self._may_go(other, part.node)
            and self._left_first(other.gpus) == self._left_first(part.gpus)
        ]
        if not equal:
            return False
        gains = [_bytes_at(other, part.node) - _bytes_at(other, node) for other in equal]
        other = equal[gains.index(max(gains))]
        first, second = (part.node, part.gpus), (other.node, other.gpus)
        self._put(part, *second)
        self._put(other, *first)
        return True

    def _put(self, part: Part, node: int, gpus: tuple[GpuId, ...]) -> None:
        """Place a part on these GPUs of a node. The GPUs of a gang stay in the same order of nodes."""
        layout = self._layout
        instead = dict(zip(part.gpus, gpus, strict=True))
        placed = layout.placements[part.bundle]
        layout.placements[part.bundle] = tuple([instead.get(gpu, gpu) for gpu in placed])
        if layout.stock is not None:
            layout.stock.charge(part.demand, part.gpus, -1)
            layout.stock.charge(part.demand, gpus)
        self._on_node[part.node].remove(part)
        self._on_node.setdefault(node, []).append(part)
        part.node, part.gpus = node, gpus


def _bytes_at(part: Part, node: int) -> float:
    """Return how much of the data of a part's column a node has."""
    return sum(table.get(node, 0.0) for table in part.tables)
