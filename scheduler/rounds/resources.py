"""The needs of columns beyond a number of GPUs, and the CPUs and memory that are left on each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.model.lease import GpuId, node_of
from scheduler.rounds.inputs import Need, NodeView

# The tolerance in CPUs and in GB, since sums of tenths are not exact.
SLACK = 1e-9


class Demand(NamedTuple):
    """The total needs of all jobs of a column, per GPU."""

    cpus: float
    memory_gb: float
    # The nodes that all jobs may use; None: every node.
    nodes: frozenset[str] | None
    # How many GPUs must be together: each node gives a multiple of this number.
    granule: int = 1

    def admits(self, node: NodeView) -> bool:
        """Whether the node may be used, and is large enough, if it were empty."""
        return len(node.gpus) >= self.granule and (self.nodes is None or node.name in self.nodes)


NOTHING = Demand(0.0, 0.0, None)


def demand_of(needs: Mapping[str, Need], jobs: Iterable[str], granule: int = 1) -> Demand | None:
    """Return the total needs of these jobs, whose column has this granule; None if they need only GPUs."""
    cpus, memory_gb, nodes = 0.0, 0.0, None
    for job in jobs:
        need = needs.get(job)
        if need is not None:
            cpus += need.cpus_per_gpu
            memory_gb += need.memory_gb_per_gpu
            if need.nodes is not None:
                nodes = need.nodes if nodes is None else nodes & need.nodes
    if not cpus and not memory_gb and nodes is None and granule == 1:
        return None
    return Demand(cpus, memory_gb, nodes, granule)


class Stock:
    """The free CPUs and memory of each node."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        # By node: the CPUs and the GB of memory that are left.
        self.left = {node.name: [node.cpus, node.memory_gb] for node in nodes}

    def usable_gpus(self, demand: Demand, node: str, gpus: int) -> int:
        """Return for how many GPUs, up to `gpus`, the node has the resources needed: a multiple of the granule."""
        if demand.nodes is not None and node not in demand.nodes:
            return 0
        cpus, memory_gb = self.left[node]
        if demand.cpus > 0:
            gpus = min(gpus, times(cpus, demand.cpus, gpus))
        if demand.memory_gb > 0:
            gpus = min(gpus, times(memory_gb, demand.memory_gb, gpus))
        return gpus - gpus % demand.granule

    def fits(self, demand: Demand, gpus: Iterable[GpuId]) -> bool:
        """Whether the nodes of these GPUs have the resources needed, and each has whole granules."""
        return all(self.usable_gpus(demand, node, count) >= count for node, count in _count(gpus).items())

    def charge(self, demand: Demand | None, gpus: Iterable[GpuId], sign: int = 1) -> None:
        """Take resources from the nodes of these GPUs; with sign -1, give them back."""
        if demand is None:
            return
        for node, count in _count(gpus).items():
            # A pinned job may run on a node that takes no newcomers, which has no entry here.
            left = self.left.get(node)
            if left is not None:
                left[0] -= sign * demand.cpus * count
                left[1] -= sign * demand.memory_gb * count


def times(left: float, each: float, most: int) -> int:
    """Return how many times `each` fits into `left`, up to `most`."""
    # The comparison comes first because the quotient may overflow.
    if left >= each * most - SLACK:
        return most
    return int((left + SLACK) // each) if left + SLACK >= each else 0


def _count(gpus: Iterable[GpuId]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for gpu in gpus:
        node = node_of(gpu)
        counts[node] = counts.get(node, 0) + 1
    return counts
