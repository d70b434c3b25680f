"""The GPUs of a plan: how fast they compute, and how fast they exchange data."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from planner.errors import BadCluster

# The part of a GPU's memory that a plan may fill; the rest goes to the framework and to fragmentation.
USABLE_MEMORY = 0.92


def gigabytes(size_bytes: float) -> str:
    """Return a size in GB, with one decimal, or three digits if it is smaller than 1 GB."""
    size_gb = size_bytes / 1e9
    if 0 < size_gb < 0.001:
        return "<0.001"
    return f"{size_gb:.1f}" if size_gb >= 1 else f"{size_gb:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One type of GPU, and the links of each GPU of this type.

    `flops_per_s` is the greatest rate of dense 16-bit arithmetic that clocks and power allow, `memory_bytes_per_s` the
    bandwidth of the memory. `link_bytes_per_s` is what a GPU can send to the other GPUs of its node, and
    `network_bytes_per_s` its part of what the node can send to other nodes.
    """

    name: str
    flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    network_bytes_per_s: float
    per_node: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not (math.isfinite(value) and value > 0):
                raise BadCluster(
                    f"must be a number above 0, got {value}", place=f"worker type '{self.name}': {field.name}"
                )

    @property
    def usable_bytes(self) -> float:
        """The memory that a plan may fill."""
        return USABLE_MEMORY * self.memory_bytes

    def bytes_per_s(self, gpus: int) -> float:
        """Return the bandwidth of each GPU in a group of neighbours: of the link if they fit into a node."""
        return self.link_bytes_per_s if gpus <= self.per_node else self.network_bytes_per_s
