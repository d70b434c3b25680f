"""GPU time by worker type: how much there was, how much of it was in use, and what the use cost.

Rules: GPUs that two packed jobs share are in use once, and each of the two pays half while both are there.
A node counts until it is lost or removed; one that is drained or silent still counts, and lies idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from scheduler.model.cluster import NodeSpec, NodeState

SAMPLES_MAX = 4096  # of the time series; beyond it every other one is dropped, again and again
HOUR_S = 3600.0


class Sample(NamedTuple):
    """Integrals up to a moment, so that the mean between any two samples is exact, thinned or not."""

    at_s: float
    running: int  # jobs with processes
    waiting: int  # jobs without
    busy_s: tuple[float, ...]  # GPU-seconds by worker type; types that came later are missing
    capacity_s: tuple[float, ...]


class Tenure(msgspec.Struct, eq=False):
    """One lease's time on its GPUs."""

    gpus: tuple[str, ...]  # in order, the same for both of a packed pair
    kind: int  # of worker type
    charged_s: float = 0.0  # until when its cost is in `cost_usd`
    cost_usd: float = 0.0


@dataclass(slots=True)
class _NodeCount:
    kind: int
    gpus: int
    broken: set[int]
    there: bool = True

    @property
    def usable(self) -> int:
        return self.gpus - len(self.broken) if self.there else 0


class GpuTime:
    """Counts GPUs and integrates over time. Times given to it never decrease."""

    def __init__(self) -> None:
        self.worker_types: list[str] = []
        self.capacity: list[int] = []
        self.busy: list[int] = []
        self.price_per_gpu_hour: dict[str, float] = {}
        self.samples: list[Sample] = []
        self.first_s: float | None = None  # when the first node came
        self._kinds: dict[str, int] = {}
        self._since_s: list[float] = []
        self._busy_s: list[float] = []
        self._capacity_s: list[float] = []
        self._prices: list[float] = []
        self._nodes: dict[str, _NodeCount] = {}
        self._tenures: dict[tuple[str, ...], list[Tenure]] = {}  # by the GPUs that are in use: one, or two
        self._stride = 1
        self._skipped = 0

    def kind(self, worker_type: str) -> int:
        """The place of a worker type in all lists here."""
        found = self._kinds.get(worker_type)
        if found is None:
            found = self._kinds[worker_type] = len(self.worker_types)
            self.worker_types.append(worker_type)
            for counts in (self.capacity, self.busy):
                counts.append(0)
            for sums in (self._since_s, self._busy_s, self._capacity_s):
                sums.append(0.0)
            self._prices.append(self.price_per_gpu_hour.get(worker_type, 0.0))
        return found

    # nodes

    def node_joined(self, now_s: float, spec: NodeSpec) -> None:
        """A node is there, whole."""
        self.node_removed(now_s, spec.name)
        self.first_s = now_s if self.first_s is None else self.first_s
        node = self._nodes[spec.name] = _NodeCount(self.kind(spec.worker_type), spec.gpus, set())
        self._add_capacity(now_s, node.kind, node.usable)

    def node_moved(self, now_s: float, name: str, state: NodeState) -> None:
        """A lost node counts no more, any other does."""
        if node := self._nodes.get(name):
            before = node.usable
            node.there = state != NodeState.LOST
            self._add_capacity(now_s, node.kind, node.usable - before)

    def node_removed(self, now_s: float, name: str) -> None:
        """A node is gone for good."""
        if node := self._nodes.pop(name, None):
            self._add_capacity(now_s, node.kind, -node.usable)

    def gpus_broken(self, now_s: float, name: str, gpus: tuple[int, ...]) -> None:
        """Some GPUs of a node count no more."""
        if node := self._nodes.get(name):
            before = node.usable
            node.broken.update(gpus)
            self._add_capacity(now_s, node.kind, node.usable - before)

    # use

    def enter(self, now_s: float, tenure: Tenure) -> None:
        """A lease's processes are there."""
        there = self._tenures.setdefault(tenure.gpus, [])
        if there:
            self._charge(now_s, there)
        else:
            self._add_busy(now_s, tenure.kind, len(tenure.gpus))
        tenure.charged_s = now_s
        there.append(tenure)

    def leave(self, now_s: float, tenure: Tenure) -> None:
        """A lease's processes are gone."""
        there = self._tenures.pop(tenure.gpus)
        self._charge(now_s, there)
        there.remove(tenure)
        if there:
            self._tenures[tenure.gpus] = there
        else:
            self._add_busy(now_s, tenure.kind, -len(tenure.gpus))

    def count_unseen(self, kind: int, gpu_s: float) -> float:
        """GPU-seconds that nobody saw begin and end; what they cost at present prices."""
        self._busy_s[kind] += gpu_s
        return gpu_s * self._prices[kind] / HOUR_S

    def set_prices(self, now_s: float, price_per_gpu_hour: dict[str, float]) -> None:
        """Prices from now on; what ran until now is charged at the old ones."""
        self.charge_all(now_s)
        self.price_per_gpu_hour.update(price_per_gpu_hour)
        self._prices = [self.price_per_gpu_hour.get(name, 0.0) for name in self.worker_types]

    def charge_all(self, now_s: float) -> None:
        """Bring the cost of everything that runs up to date."""
        for there in self._tenures.values():
            self._charge(now_s, there)

    # what came of it

    def totals(self, now_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """GPU-seconds in use, and GPU-seconds there were, until now, by type."""
        for kind in range(len(self.worker_types)):
            self._settle(now_s, kind)
        return tuple(self._busy_s), tuple(self._capacity_s)

    def sample(self, now_s: float, running: int, waiting: int) -> None:
        """Take one point of the time series, or pass over it when there are too many."""
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

    def _charge(self, now_s: float, there: list[Tenure]) -> None:
        first = there[0]
        gpu_h = (now_s - first.charged_s) * len(first.gpus) / HOUR_S
        each_usd = gpu_h * self._prices[first.kind] / len(there)
        for tenure in there:
            tenure.cost_usd += each_usd
            tenure.charged_s = now_s
