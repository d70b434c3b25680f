"""Convert what nodes report about gangs, and the orders to them, between the protocol and `gangs.py`."""

from __future__ import annotations

from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.agents.gangs import Go, Ready


def ready_of(ready: pb.GangReady) -> Ready:
    """Return a node's report that its part of a gang is ready, or cannot start."""
    return Ready(
        master_port=ready.master_port,
        coordinator_port=ready.coordinator_port,
        failed=ready.failed[:500],
        cache_port=ready.cache_port,
        cache_secret=ready.cache_secret,
    )


def go_to(go: Go, address_of: Callable[[str], str]) -> pb.SchedulerMessage:
    """Return an order to a node of a gang. `address_of`: the address of a node, empty if it has no link."""
    caches = [pb.CacheNode(node=node, address=address_of(node), port=port) for node, port in go.cache_ports]
    return pb.SchedulerMessage(
        gang_go=pb.GangGo(
            lease=go.lease,
            master_address=address_of(go.lead) if go.lead else "",
            master_port=go.master_port,
            coordinator_port=go.coordinator_port,
            failed=go.failed,
            cache_nodes=caches,
            cache_secret=go.cache_secret,
        )
    )
