"""The CPUs of nodes: jobs that do steps on a node divide its CPUs, as the weights of control groups do.

Rules: CPUs are divided in proportion to GPUs, and no job gets more than it can use. So each job has its fair share if
it can use it, and what some leave idle goes to the others. Two jobs on the same GPUs count half each. A gang is as fast
as on that of its nodes where it has the fewest CPUs per GPU. A job without rates by CPUs uses its fair share. The fair
share of a job that asked for more CPUs than belong to its GPUs is as many as it asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduler.model.lease import GpuId, node_of
from scheduler.sim.engine.gang import Gang
from scheduler.sim.engine.node import Node
from scheduler.sim.engine.physics import Physics
from traces.cpu_rates import CpuRates


class Claim(NamedTuple):
    """The claim of one job: its weight, and the most CPUs that it can use."""

    weight: float
    most: float


def divide(cpus: float, claims: Sequence[Claim]) -> list[float]:
    """Return the CPUs of each claim: in proportion to weights, but none gets more than it can use."""
    shares = [0.0] * len(claims)
    order = sorted(
        range(len(claims)), key=lambda index: (claims[index].most / claims[index].weight, claims[index])
    )
    # Those that need the least for their weight come first, so that what they leave goes to all after them.
    for place, index in enumerate(order):
        level = cpus / math.fsum(claims[other].weight for other in order[place:])
        most = claims[index].most
        if most > level * claims[index].weight:
            for other in order[place:]:
                shares[other] = min(claims[other].most, level * claims[other].weight)
            break
        shares[index] = most
        cpus = max(0.0, cpus - most)
    return shares


class NodeCpus:
    """The CPUs per GPU of each gang that does steps on nodes with CPUs.

    If the physics has fixed CPUs, each gang has its fair share and no more.
    """

    def __init__(self, physics: Physics, nodes: Mapping[str, Node]) -> None:
        self._physics, self._nodes, self._fixed = physics, nodes, physics.fixed_cpus
        # The gangs that do steps on each node with CPUs, with their GPUs there.
        self._gangs: dict[str, dict[Gang, int]] = {}
        # The CPUs per GPU of these gangs, by node.
        self._per_gpu: dict[str, dict[Gang, float]] = {}

    def enter(self, gang: Gang) -> list[Gang]:
        """Let a gang begin to use CPUs, and return the other gangs that have more or fewer CPUs for it."""
        gpus_on = Counter(map(node_of, gang.lease.gpus))
        names = [name for name in gpus_on if self._nodes[name].spec.cpus]
        for name in names:
            self._gangs.setdefault(name, {})[gang] = gpus_on[name]
        return self._divide_again(names, gang)

    def leave(self, gang: Gang) -> list[Gang]:
        """Take back the CPUs of a gang, and return the other gangs that have more or fewer CPUs for it."""
        names = [name for name in gang.nodes if gang in self._gangs.get(name, ())]
        for name in names:
            del self._gangs[name][gang]
        return self._divide_again(names, gang)

    def factor(self, gang: Gang) -> float:
        """Return the rate of a gang with its CPUs, relative to its rate in the table."""
        curve = self._curve(gang)
        shares = [self._per_gpu[name][gang] for name in gang.nodes if gang in self._per_gpu.get(name, ())]
        return curve.rate(min(shares)) / self._physics.table.solo[_key(gang)] if curve and shares else 1.0

    def _divide_again(self, names: Sequence[str], gang: Gang) -> list[Gang]:
        """Divide the CPUs of these nodes anew. Return the gangs that have others than before, without this one."""
        changed: dict[Gang, None] = {}
        for name in names:
            before, shares = self._per_gpu.get(name, {}), self._shares(name)
            self._per_gpu[name] = shares
            changed |= {other: None for other, share in shares.items() if share != before.get(other)}
        changed.pop(gang, None)
        return list(changed)

    def _shares(self, name: str) -> dict[Gang, float]:
        """Return the CPUs per GPU of each gang on a node."""
        cpus, gangs = self._nodes[name].spec.cpus or 0.0, self._gangs[name]
        at_place: dict[GpuId, list[Gang]] = {}
        for gang in gangs:
            at_place.setdefault(gang.place, []).append(gang)
        claims = [self._claim(name, gang, gpus, at_place[gang.place]) for gang, gpus in gangs.items()]
        shares = divide(cpus, claims)
        return {gang: share / gpus for (gang, gpus), share in zip(gangs.items(), shares, strict=True)}

    def _claim(self, name: str, gang: Gang, gpus: int, sharing: Sequence[Gang]) -> Claim:
        """Return the claim of a gang with these GPUs on a node. `sharing`: the gangs on these GPUs."""
        spec = self._nodes[name].spec
        cpus = spec.cpus or 0.0
        own_cpus = gang.truth.cpus * gpus / len(gang.lease.gpus)
        fair = min(max(own_cpus, cpus * gpus / spec.gpus / len(sharing)), cpus)
        curve = self._curve(gang)
        if self._fixed or curve is None:
            return Claim(fair, fair)
        rate = math.inf
        for other in sharing:
            if other is not gang:
                facts = gang.lease, gang.worker_type, gang.consolidated
                alone, paired = self._physics.rate(*facts), self._physics.rate(*facts, other.lease)
                rate = paired / alone * self._physics.table.solo[_key(gang)] if alone > 0.0 else 0.0
        return Claim(fair, curve.needed(rate) * gpus)

    def _curve(self, gang: Gang) -> CpuRates | None:
        return self._physics.table.cpu_rates.get(_key(gang))


def _key(gang: Gang) -> tuple[str, int, str]:
    return gang.truth.job_type, len(gang.lease.gpus), gang.worker_type
