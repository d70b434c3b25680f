"""The gangs that do steps: which of them share GPUs, or the CPUs of a node, and how fast each is for that."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model.lease import GpuId
from scheduler.sim.engine.cpus import NodeCpus
from scheduler.sim.engine.gang import Gang
from scheduler.sim.engine.node import Node
from scheduler.sim.engine.physics import Physics


class Places:
    """The places of gangs that do steps. When a gang comes or goes, others may become slower or faster."""

    def __init__(self, physics: Physics, nodes: Mapping[str, Node]) -> None:
        self._physics = physics
        # By place: one gang, or the two of a packed pair.
        self._gangs: dict[GpuId, list[Gang]] = {}
        # None: the table has no rates by CPUs.
        self._cpus = NodeCpus(physics, nodes) if physics.table.cpu_rates else None

    def enter(self, gang: Gang) -> list[Gang]:
        """Let a gang begin its steps, and return the other gangs for which rates change."""
        sharing = self._gangs.setdefault(gang.place, [])
        others = list(sharing)
        sharing.append(gang)
        if self._cpus is not None:
            others += [other for other in self._cpus.enter(gang) if other not in others]
        return others

    def leave(self, gang: Gang) -> list[Gang]:
        """Let a gang stop its steps, and return the other gangs for which rates change."""
        sharing = self._gangs[gang.place]
        sharing.remove(gang)
        others = list(sharing)
        if not sharing:
            del self._gangs[gang.place]
        if self._cpus is not None:
            others += [other for other in self._cpus.leave(gang) if other not in others]
        return others

    def rate(self, gang: Gang) -> float:
        """Return the steps per second of a gang, with what it shares with others; 0 if it does not fit."""
        beside = next((other.lease for other in self._gangs[gang.place] if other is not gang), None)
        rate = self._physics.rate(gang.lease, gang.worker_type, gang.consolidated, beside)
        if self._cpus is None:
            return rate
        factor = self._cpus.factor(gang)
        if beside is None:
            return rate * factor
        # The GPUs make a pair slower, and CPUs may, but they do not make it faster.
        return min(rate, factor * self._physics.rate(gang.lease, gang.worker_type, gang.consolidated))
