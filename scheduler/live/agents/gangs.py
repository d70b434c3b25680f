"""Gangs over several nodes start together or not at all. No clock, no network.

Every node of a lease reports that it prepares its part, which may take minutes, and then that the part is ready, or why
it cannot start. When the last part is ready, all nodes receive Go. If one node cannot start, or does not report in
time, none starts. A node that reports again, for example after a lost link, receives the same decision. A restarted
scheduler decides again, because all nodes report to it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Within this time after the first report about a gang, all its nodes must report.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """One node's report that its part is ready, or in `failed` the reason why it cannot start.

    The first node of the gang also reports two free ports: `master_port` for PyTorch's rendezvous, and
    `coordinator_port`, on which the ranks agree on their last step; and a secret for the caches. Each node that has a
    cache reports a port for it.
    """

    master_port: int = 0
    coordinator_port: int = 0
    failed: str = ""
    cache_port: int = 0
    cache_secret: str = ""


@dataclass(frozen=True, slots=True)
class Go:
    """The order to a node to start its part, or in `failed` why it must not. The ranks meet on the node `lead`."""

    node: str
    lease: str
    lead: str = ""
    master_port: int = 0
    coordinator_port: int = 0
    failed: str = ""
    # All nodes, and their ports for cached items (0: no cache); empty if no node has a cache.
    cache_ports: tuple[tuple[str, int], ...] = ()
    cache_secret: str = ""


@dataclass(slots=True)
class _Gang:
    nodes: tuple[str, ...]
    # The time at which the gang fails unless all its nodes have reported.
    until_s: float
    # The nodes that have reported that they prepare or that they are ready.
    reported: set[str] = field(default_factory=set)
    ready: dict[str, Ready] = field(default_factory=dict)
    # Whether it is decided that all nodes start or, with the reason in `failed`, that none starts.
    decided: bool = False
    failed: str = ""


class Gangs:
    """The gangs that prepare to start, and those that have received their orders, until their leases end."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._gangs: dict[str, _Gang] = {}

    def on_preparing(self, now_s: float, node: str, lease: str, nodes: tuple[str, ...]) -> list[Go]:
        """Record that a node prepares its part; return an order if the gang has failed. `nodes`: as for `on_ready`."""
        if node not in nodes:
            return [Go(node, lease, failed="this lease is over")]
        gang = self._gang(now_s, lease, nodes)
        gang.reported.add(node)
        return [self._go(lease, gang, node)] if gang.failed else []

    def on_ready(self, now_s: float, node: str, lease: str, ready: Ready, nodes: tuple[str, ...]) -> list[Go]:
        """Record a node's report; return the orders that follow.

        `nodes`: the nodes of the lease in the order of its ranks; empty if the lease is over.
        """
        if node not in nodes:
            return [Go(node, lease, failed="this lease is over")]
        gang = self._gang(now_s, lease, nodes)
        gang.reported.add(node)
        if gang.decided:
            return [self._go(lease, gang, node)]
        gang.ready[node] = ready
        if ready.failed:
            return self._decide(lease, gang, f"{node}: {ready.failed}")
        if len(gang.ready) == len(nodes):
            return self._decide(lease, gang)
        return []

    def fail_overdue(self, now_s: float) -> list[Go]:
        """Fail each gang if one of its nodes has not reported in time; return the orders that follow."""
        orders = []
        for lease, gang in self._gangs.items():
            missing = ", ".join(name for name in gang.nodes if name not in gang.reported)
            if missing and not gang.decided and gang.until_s <= now_s:
                orders += self._decide(lease, gang, f"no report from {missing} within {self._patience_s:g} s")
        return orders

    def keep(self, is_held: Callable[[str], bool]) -> None:
        """Forget the gangs whose lease is no longer held."""
        for lease in [lease for lease in self._gangs if not is_held(lease)]:
            del self._gangs[lease]

    def _gang(self, now_s: float, lease: str, nodes: tuple[str, ...]) -> _Gang:
        gang = self._gangs.get(lease)
        if gang is None or gang.nodes != nodes:
            gang = self._gangs[lease] = _Gang(nodes, now_s + self._patience_s)
        return gang

    def _decide(self, lease: str, gang: _Gang, failed: str = "") -> list[Go]:
        """Decide that all nodes start, or none if `failed`. Return the orders to the nodes that have reported.

        Each other node receives its order when it reports.
        """
        gang.decided, gang.failed = True, failed
        return [self._go(lease, gang, node) for node in gang.nodes if node in gang.reported]

    def _go(self, lease: str, gang: _Gang, node: str) -> Go:
        if gang.failed:
            return Go(node, lease, failed=gang.failed)
        lead = gang.nodes[0]
        ready = gang.ready[lead]
        ports = tuple((name, gang.ready[name].cache_port) for name in gang.nodes)
        shares_caches = bool(ready.cache_secret) and any(port for _, port in ports)
        return Go(
            node,
            lease,
            lead,
            ready.master_port,
            ready.coordinator_port,
            cache_ports=ports if shares_caches else (),
            cache_secret=ready.cache_secret if shares_caches else "",
        )
