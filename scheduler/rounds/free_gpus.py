"""The free GPUs of one worker type, by node."""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import filterfalse

from scheduler.model.lease import GpuId
from scheduler.rounds.lookup import Site
from scheduler.rounds.resources import Demand, Stock


class FreeGpus:
    """The free GPUs of each node, with an index of the nodes by their number of free GPUs."""

    def __init__(self, site: Site, busy: set[GpuId]) -> None:
        self.nodes = site.nodes
        # The free GPUs of each node. Here and below, a node is an index in `nodes`.
        self.free: list[list[GpuId]] = [[] for _ in site.nodes]
        for gpu in filterfalse(busy.__contains__, site.node_of):
            self.free[site.node_of[gpu]].append(gpu)
        self._node_of = site.node_of
        # For each number of free GPUs, the nodes that have so many; None until it is needed.
        self._by_free: list[dict[int, None]] | None = None

    def tightest_node(self, width: int) -> int | None:
        """Return the node with the fewest free GPUs among those with at least `width`; None if there is none."""
        by_free = self._index()
        for count in range(width, len(by_free)):
            if by_free[count]:
                return next(iter(by_free[count]))
        return None

    def take(self, node: int, width: int) -> tuple[GpuId, ...]:
        """Take `width` GPUs from a node and return them."""
        free = self.free[node]
        gpus = tuple(free[:width])
        self._recount(node, len(free), len(free) - width)
        del free[:width]
        return gpus

    def give_back(self, gpus: Iterable[GpuId]) -> None:
        """Add GPUs that have become free."""
        for gpu in gpus:
            node = self.node_of(gpu)
            free = self.free[node]
            self._recount(node, len(free), len(free) + 1)
            free.append(gpu)

    def spread(self, width: int) -> tuple[GpuId, ...] | None:
        """Take GPUs from as few nodes as possible; None if there are too few.

        The nodes with the most free GPUs give all of them, until some node has enough for the rest. The rest comes from
        the node that has enough and the fewest.
        """
        by_free = self._index()
        gpus: tuple[GpuId, ...] = ()
        if sum(map(len, self.free)) < width:
            return None
        while len(gpus) < width:
            node = self.tightest_node(width - len(gpus))
            if node is None:
                node = next(iter(next(nodes for nodes in reversed(by_free) if nodes)))
            gpus += self.take(node, min(width - len(gpus), len(self.free[node])))
        return gpus

    def singles(self, count: int) -> list[GpuId]:
        """Return up to `count` GPUs from the nodes with the fewest free GPUs, without taking them."""
        gpus: list[GpuId] = []
        for free in sorted(filter(None, self.free), key=len):
            if len(gpus) >= count:
                break
            gpus += free
        return gpus[:count]

    def find(
        self, width: int, demand: Demand, stock: Stock | None, closed_nodes: Set[str] = frozenset()
    ) -> tuple[GpuId, ...] | None:
        """Return free GPUs on as few nodes with the needed resources as possible; None if there are too few.

        The GPUs are not taken.
        """
        usable = [
            0
            if node.name in closed_nodes
            else len(free)
            if stock is None
            else stock.usable_gpus(demand, node.name, len(free))
            for node, free in zip(self.nodes, self.free, strict=True)
        ]
        enough = [node for node, most in enumerate(usable) if most >= width]
        if enough:
            node = min(enough, key=lambda node: len(self.free[node]))
            return tuple(self.free[node][:width])
        gpus: list[GpuId] = []
        for node in sorted(range(len(usable)), key=lambda node: -usable[node]):
            gpus += self.free[node][: min(usable[node], width - len(gpus))]
        return tuple(gpus) if len(gpus) == width else None

    def take_these(self, gpus: Iterable[GpuId]) -> None:
        """Take these GPUs."""
        for gpu in gpus:
            node = self.node_of(gpu)
            free = self.free[node]
            self._recount(node, len(free), len(free) - 1)
            free.remove(gpu)

    def has(self, gpus: Iterable[GpuId]) -> bool:
        """Whether all these GPUs are free."""
        index = self._node_of
        return all(gpu in index and gpu in self.free[index[gpu]] for gpu in gpus)

    def node_of(self, gpu: GpuId) -> int:
        """Return the node that a GPU is in, as an index in `nodes`."""
        return self._node_of[gpu]

    def name_of(self, gpu: GpuId) -> str:
        """Return the name of the node that a GPU is in."""
        return self.nodes[self._node_of[gpu]].name

    def contains(self, gpu: GpuId) -> bool:
        """Whether the GPU is in one of `nodes`, the nodes that accept new jobs."""
        return gpu in self._node_of

    def _index(self) -> list[dict[int, None]]:
        if self._by_free is None:
            most = max((len(node.gpus) for node in self.nodes), default=0)
            self._by_free = [{} for _ in range(most + 1)]
            for node, free in enumerate(self.free):
                self._by_free[len(free)][node] = None
        return self._by_free

    def _recount(self, node: int, before: int, after: int) -> None:
        if self._by_free is not None:
            del self._by_free[before][node]
            self._by_free[after][node] = None
