"""GPU time by worker type: how much was available, how much of it was in use, and its cost.

Rules: GPUs that two packed jobs share count once as in use, and each job pays half while both have processes. A node
counts until it is lost or removed; a drained or silent node still counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from scheduler.model.cluster import NodeSpec, NodeState

# Whenever the time series reaches this many samples, every other one is dropped.
SAMPLES_MAX = 4096
HOUR_S = 3600.0


class Sample(NamedTuple):
    """Totals up to a time. The mean between any two samples is exact, even if samples between them were dropped."""

    at_s: float
    # Jobs with processes, and without.
    running: int
    waiting: int
    # GPU-seconds by worker type, without types that appeared later.
    busy_s: tuple[float, ...]
    capacity_s: tuple[float, ...]


class Tenure(msgspec.Struct, eq=False):
    """One lease's time on its GPUs."""

    # Sorted, so that both jobs of a packed pair have the same tuple.
    gpus: tuple[str, ...]
    # The number of the worker type.
    kind: int
    # `cost_usd` is the cost up to this time.
    charged_s: float = 0.0
    cost_usd: float = 0.0


@dataclass(slots=True)
class _NodeCount:
    # The number of the worker type.
    kind: int
    gpus: int
    # The indexes of broken GPUs.
    broken: set[int]
    # False: the node is lost.
    present: bool = True

    @property
    def usable(self) -> int:
        return self.gpus - len(self.broken) if self.present else 0


class GpuTime:
    """Counts GPUs, and adds up their time. Times passed to it must not decrease."""

    def __init__(self) -> None:
        self.worker_types: list[str] = []
        # By worker type: how many GPUs are available now, and how many of them are in use.
        self.capacity: list[int] = []
        self.busy: list[int] = []
        self.price_per_gpu_hour: dict[str, float] = {}
        self.samples: list[Sample] = []
        # When the first node joined.
        self.first_s: float | None = None
        self._kinds: dict[str, int] = {}
        self._since_s: list[float] = []
        self._busy_s: list[float] = []
        self._capacity_s: list[float] = []
        self._prices: list[float] = []
        self._nodes: dict[str, _NodeCount] = {}
        # By set of GPUs in use: their tenure, or the two of a packed pair.
        self._tenures: dict[tuple[str, ...], list[Tenure]] = {}
        # Of each `_stride` samples, one is kept; `_skipped` counts the samples since that one.
        self._stride = 1
        self._skipped = 0

    def kind(self, worker_type: str) -> int:
        """Return the index of a worker type in all lists here."""
        kind = self._kinds.get(worker_type)
        if kind is None:
            kind = self._kinds[worker_type] = len(self.worker_types)
            self.worker_types.append(worker_type)
            for counts in (self.capacity, self.busy):
                counts.append(0)
            for sums in (self._since_s, self._busy_s, self._capacity_s):
                sums.append(0.0)
            self._prices.append(self.price_per_gpu_hour.get(worker_type, 0.0))
        return kind

    # Nodes.

    def node_joined(self, now_s: float, spec: NodeSpec) -> None:
        """Count a node that joins, with all its GPUs."""
        self.node_removed(now_s, spec.name)
        self.first_s = now_s if self.first_s is None else self.first_s
        node = self._nodes[spec.name] = _NodeCount(self.kind(spec.worker_type), spec.gpus, set())
        self._add_capacity(now_s, node.kind, node.usable)

    def node_moved(self, now_s: float, name: str, state: NodeState) -> None:
        """Count a node again, or stop counting it if it is lost."""
        if node := self._nodes.get(name):
            before = node.usable
            node.present = state != NodeState.LOST
            self._add_capacity(now_s, node.kind, node.usable - before)

    def node_removed(self, now_s: float, name: str) -> None:
        """Stop counting a node that was removed."""
        if node := self._nodes.pop(name, None):
            self._add_capacity(now_s, node.kind, -node.usable)

    def gpus_broken(self, now_s: float, name: str, gpus: tuple[int, ...]) -> None:
        """Stop counting GPUs that are broken."""
        if node := self._nodes.get(name):
            before = node.usable
            node.broken.update(gpus)
            self._add_capacity(now_s, node.kind, node.usable - before)

    # Use.

    def enter(self, now_s: float, tenure: Tenure) -> None:
        """Count the GPUs of a lease whose processes start."""
        tenures = self._tenures.setdefault(tenure.gpus, [])
        if tenures:
            self._charge(now_s, tenures)
        else:
            self._add_busy(now_s, tenure.kind, len(tenure.gpus))
        tenure.charged_s = now_s
        tenures.append(tenure)

    def leave(self, now_s: float, tenure: Tenure) -> None:
        """Stop counting the GPUs of a lease whose processes are gone."""
        tenures = self._tenures.pop(tenure.gpus)
        self._charge(now_s, tenures)
        tenures.remove(tenure)
        if tenures:
            self._tenures[tenure.gpus] = tenures
        else:
            self._add_busy(now_s, tenure.kind, -len(tenure.gpus))

    def count_unseen(self, kind: int, gpu_s: float) -> float:
        """Count GPU-seconds whose start and end are not in the facts. Return their cost at present prices."""
        self._busy_s[kind] += gpu_s
        return gpu_s * self._prices[kind] / HOUR_S

    def set_prices(self, now_s: float, price_per_gpu_hour: dict[str, float]) -> None:
        """Set prices from now on. The time until now is charged at the old prices."""
        self.charge_all(now_s)
        self.price_per_gpu_hour.update(price_per_gpu_hour)
        self._prices = [self.price_per_gpu_hour.get(name, 0.0) for name in self.worker_types]

    def charge_all(self, now_s: float) -> None:
        """Charge all tenures up to now."""
        for tenures in self._tenures.values():
            self._charge(now_s, tenures)

    # Sums.

    def totals(self, now_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return, by type, the GPU-seconds in use until now and those of all GPUs."""
        for kind in range(len(self.worker_types)):
            self._settle(now_s, kind)
        return tuple(self._busy_s), tuple(self._capacity_s)

    def sample(self, now_s: float, running: int, waiting: int) -> None:
        """Add a sample to the time series, or skip it to keep the series short."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.samples.append(Sample(now_s, running, waiting, *self.totals(now_s)))
        if len(self.samples) >= SAMPLES_MAX:
            del self.samples[1::2]
            self._stride *= 2

    def _add_busy(self, now_s: float, kind: int, gpus: int) -> None:
        if now_s > self._since_s[kind]:
            self._settle(now_s, kind)
        self.busy[kind] += gpus

    def _add_capacity(self, now_s: float, kind: int, gpus: int) -> None:
        self._settle(now_s, kind)
        self.capacity[kind] += gpus

    def _settle(self, now_s: float, kind: int) -> None:
        passed_s = now_s - self._since_s[kind]
        if passed_s:
            self._busy_s[kind] += passed_s * self.busy[kind]
            self._capacity_s[kind] += passed_s * self.capacity[kind]
            self._since_s[kind] = now_s

    def _charge(self, now_s: float, tenures: list[Tenure]) -> None:
        """Charge the tenures on one set of GPUs up to now, each with its part."""
        first = tenures[0]
        gpu_h = (now_s - first.charged_s) * len(first.gpus) / HOUR_S
        each_usd = gpu_h * self._prices[first.kind] / len(tenures)
        for tenure in tenures:
            tenure.cost_usd += each_usd
            tenure.charged_s = now_s
