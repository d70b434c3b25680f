"""Move newcomers to equal places with more of their data in the cache of the node: the last step of a plan.

Before this step it is settled which columns run, which jobs lose their GPUs, and on how many nodes each gang runs. None
of that changes, because only these moves are made, each of them by newcomers, whose jobs hold no GPUs:

1. a newcomer goes to a node that is as full as its own would be without it, alone or with other newcomers of its node;
2. two newcomers that need the same change places.

A round in which no node has data of a newcomer skips this step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

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
    node: int
    gpus: tuple[GpuId, ...]


def move_to_data(board: Board, layout: Layout, reserved: Collection[int]) -> None:
    """Move newcomers to equal places with more of their data. `reserved`: worker types with GPUs that are held back."""
    held, likings = board.inputs.held, board.inputs.likings
    row_of = board.inputs.candidates.columns.row_of
    newcomers: dict[int, list[Bundle]] = {}
    for bundle in layout.placements:
        if all(job not in held for job in bundle.jobs):
            newcomers.setdefault(board.kinds[row_of[bundle]], []).append(bundle)
    leaving: set[GpuId] = set()
    for kind, bundles in newcomers.items():
        liked = [bundle for bundle in bundles if any(job in likings for job in bundle.jobs)]
        if liked:
            leaving = leaving or {gpu for holding in held.values() for gpu in holding.gpus}
            _Moves(board, layout, kind, bundles, leaving, kind in reserved).make(liked)


class _Moves:
    """The moves on the nodes of one worker type."""

    def __init__(
        self,
        board: Board,
        layout: Layout,
        kind: int,
        newcomers: Sequence[Bundle],
        leaving: Collection[GpuId],
        is_held_back: bool,
    ) -> None:
        self._board, self._layout, self._leaving = board, layout, leaving
        self._is_held_back = is_held_back
        self._free = FreeGpus(board.sites[kind], layout.busy)
        self._node_of_name = {node.name: number for number, node in enumerate(self._free.nodes)}
        # Sets of nodes to which jobs are confined: what counts as equal must be in the same sets.
        self._confines = {need.nodes for need in board.inputs.needs.values() if need.nodes is not None}
        self._parts_of: dict[Bundle, list[Part]] = {}
        self._on_node: dict[int, list[Part]] = {}
        for bundle in newcomers:
            self._parts_of[bundle] = [*self._split(bundle)]
            for part in self._parts_of[bundle]:
                self._on_node.setdefault(part.node, []).append(part)
        # By the likings of a job, which jobs share: the nodes with data, those with most first.
        self._best: dict[int, list[int]] = {}

    def _split(self, bundle: Bundle) -> Iterator[Part]:
        """Yield the parts of a column that may move. A gang on several nodes that needs more than GPUs does not."""
        by_node: dict[int, list[GpuId]] = {}
        for gpu in self._layout.placements[bundle]:
            by_node.setdefault(self._free.node_of(gpu), []).append(gpu)
        demand = self._board.demand(self._board.inputs.candidates.columns.row_of[bundle])
        if demand is None or len(by_node) == 1:
            for node, gpus in by_node.items():
                yield Part(bundle, demand, node, tuple(gpus))

    def make(self, liked: Sequence[Bundle]) -> None:
        """Make all moves of these columns, the first ones before others."""
        for bundle in liked:
            for part in self._parts_of[bundle]:
                here = self._liking(bundle, part.node)
                better = (node for node in self._best_nodes(bundle) if self._liking(bundle, node) > here)
                for node in islice(better, NODES_MAX):
                    if self._go(part, node) or self._exchange(part, node):
                        break

    def _liking(self, bundle: Bundle, node: int) -> float:
        """Return how much of a column's data a node has."""
        likings, name = self._board.inputs.likings, self._free.nodes[node].name
        return sum(likings[job].get(name, 0.0) for job in bundle.jobs if job in likings)

    def _best_nodes(self, bundle: Bundle) -> list[int]:
        """Return the nodes with data of the column's first job that has any, those with most first."""
        likings = next(
            self._board.inputs.likings[job] for job in bundle.jobs if job in self._board.inputs.likings
        )
        if id(likings) not in self._best:
            known = [
                (-size, self._node_of_name[name])
                for name, size in likings.items()
                if name in self._node_of_name
            ]
            self._best[id(likings)] = [node for _, node in sorted(known)]
        return self._best[id(likings)]

    def _go(self, part: Part, node: int) -> bool:
        """Move a part to free GPUs of an equal node, if possible, with other parts of its node if it needs company."""
        free = self._free.free
        width = len(free[node]) - len(free[part.node])
        if self._is_held_back or width < len(part.gpus) or not self._can_use(part, node):
            return False
        group = [part]
        for other in self._company(part, node):
            if sum(len(member.gpus) for member in group) + len(other.gpus) <= width:
                group.append(other)
        gpus = sorted(free[node], key=self._leaving.__contains__)[:width]
        before = [gpu for member in group for gpu in member.gpus]
        if (
            len(before) != width
            or sum(self._gain(member, node) for member in group) <= 0
            or not self._are_equal(group, part.node, node)
            # GPUs that a job has to leave first are no equal place for GPUs that are idle.
            or sum(gpu in self._leaving for gpu in gpus) > sum(gpu in self._leaving for gpu in before)
        ):
            return False
        for member in group:
            new, gpus = tuple(gpus[: len(member.gpus)]), gpus[len(member.gpus) :]
            self._free.take_these(new)
            self._free.give_back(member.gpus)
            self._put(member, node, new)
        return True

    def _company(self, part: Part, node: int) -> list[Part]:
        """Return the other parts on the node of `part` that could go to `node` with it, those that gain most first."""
        others = [
            other for other in self._on_node[part.node] if other is not part and self._can_use(other, node)
        ]
        return sorted(others, key=lambda other: -self._gain(other, node))

    def _can_use(self, part: Part, node: int) -> bool:
        """Whether the column of a part has no other part on this node."""
        return all(other.node != node for other in self._parts_of[part.bundle])

    def _gain(self, part: Part, node: int) -> float:
        return self._liking(part.bundle, node) - self._liking(part.bundle, part.node)

    def _are_equal(self, group: Sequence[Part], before: int, after: int) -> bool:
        """Whether two nodes are alike, and have the same left, apart from what these parts use of the first one."""
        nodes, stock = self._free.nodes, self._layout.stock
        names = nodes[before].name, nodes[after].name
        if len(nodes[before].gpus) != len(nodes[after].gpus):
            return False
        if any((names[0] in confine) != (names[1] in confine) for confine in self._confines):
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

    def _exchange(self, part: Part, node: int) -> bool:
        """Let a part change places with the one on this node with which most is gained; return whether there is one."""
        if not self._can_use(part, node):
            return False
        equal = [
            other
            for other in self._on_node.get(node, ())
            if (len(other.gpus), other.demand) == (len(part.gpus), part.demand)
            and self._can_use(other, part.node)
            and sum(gpu in self._leaving for gpu in other.gpus)
            == sum(gpu in self._leaving for gpu in part.gpus)
        ]
        gains = [self._gain(part, node) + self._gain(other, part.node) for other in equal]
        if not gains or max(gains) <= 0:
            return False
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
