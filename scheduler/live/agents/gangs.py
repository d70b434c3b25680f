"""Gangs over several nodes start together or not at all. No clock, no network.

Every node of a lease says that it prepares its part, which may take minutes, and then that the part can start, or why
it cannot; when the last one can, all are told to go. One that cannot, or from which no word comes in time, and nobody
starts. What was decided is said again to a node that asks again:
after a lost link, or after a restart of the scheduler, which knows nothing and hears all of it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """What one node says. `failed`: it cannot start, and why."""

    master_port: int = 0
    coordinator_port: int = 0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Go:
    """What a node is told. `failed`: nobody starts, and why."""

    node: str
    lease: str
    lead: str = ""  # the first node, where ranks meet
    master_port: int = 0
    coordinator_port: int = 0
    failed: str = ""


@dataclass(slots=True)
class _Gang:
    nodes: tuple[str, ...]
    until_s: float
    heard: set[str] = field(default_factory=set)
    ready: dict[str, Ready] = field(default_factory=dict)
    failed: str = ""
    decided: bool = False


class Gangs:
    """All gangs that gather, or have gathered and still have their lease."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._gangs: dict[str, _Gang] = {}

    def on_preparing(self, now_s: float, node: str, lease: str, nodes: tuple[str, ...]) -> list[Go]:
        """A node has begun; it is told only if that is in vain. `nodes` as for `on_ready`."""
        if node not in nodes:
            return [Go(node, lease, failed="this lease is over")]
        gang = self._gang(now_s, lease, nodes)
        gang.heard.add(node)
        return [self._go(lease, gang, node)] if gang.failed else []

    def on_ready(self, now_s: float, node: str, lease: str, said: Ready, nodes: tuple[str, ...]) -> list[Go]:
        """A node has spoken. `nodes`: of the lease, in the order of its ranks; empty: there is no such lease (now)."""
        if node not in nodes:
            return [Go(node, lease, failed="this lease is over")]
        gang = self._gang(now_s, lease, nodes)
        gang.heard.add(node)
        if gang.decided:
            return [self._go(lease, gang, node)]
        gang.ready[node] = said
        if said.failed:
            return self._decide(lease, gang, f"{node}: {said.failed}")
        if len(gang.ready) == len(nodes):
            return self._decide(lease, gang)
        return []

    def overdue(self, now_s: float) -> list[Go]:
        """Where a node has not even said that it prepares, nobody starts."""
        told = []
        for lease, gang in self._gangs.items():
            missing = ", ".join(name for name in gang.nodes if name not in gang.heard)
            if missing and not gang.decided and gang.until_s <= now_s:
                told += self._decide(lease, gang, f"no word from {missing} within {self._patience_s:g} s")
        return told

    def keep(self, is_held: Callable[[str], bool]) -> None:
        """Forget all leases that are over."""
        for lease in [lease for lease in self._gangs if not is_held(lease)]:
            del self._gangs[lease]

    @property
    def gathering(self) -> Iterable[str]:
        """Leases that wait for some of their nodes."""
        return [lease for lease, gang in self._gangs.items() if not gang.decided]

    def _gang(self, now_s: float, lease: str, nodes: tuple[str, ...]) -> _Gang:
        gang = self._gangs.get(lease)
        if gang is None or gang.nodes != nodes:
            gang = self._gangs[lease] = _Gang(nodes, now_s + self._patience_s)
        return gang

    def _decide(self, lease: str, gang: _Gang, failed: str = "") -> list[Go]:
        """All who have spoken are told; the others when they speak."""
        gang.decided, gang.failed = True, failed
        return [self._go(lease, gang, node) for node in gang.nodes if node in gang.heard]

    def _go(self, lease: str, gang: _Gang, node: str) -> Go:
        if gang.failed:
            return Go(node, lease, failed=gang.failed)
        lead = gang.nodes[0]
        said = gang.ready[lead]
        return Go(node, lease, lead, said.master_port, said.coordinator_port)
