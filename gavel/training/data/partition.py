"""The caches of a gang's nodes as one: each item is kept by one node, for all of them.

Which node is decided by a hash of the item's key and the node's name (rendezvous hashing): no node needs to know what
another one has, and where nodes come or go, only their share of the items changes its owner. Rules:

- What is in this node's arena is taken from there. Otherwise the owner is asked, and then storage; what storage returns
  is given to the owner.
- An item for which the owner has no room goes to the next node in the order of the hash, up to `OWNERS_MAX`. So where
  a node has refused any item, the search for one goes on to the next.
- An owner that does not answer in time, or answers wrongly, is left alone for a while; its items come from storage, and
  are not kept meanwhile.
- Longer items than the protocol permits are kept by the node that reads them.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b

from gavel.training.data import peer_server
from gavel.training.data.arena import Arena
from gavel.training.data.peers import FREE, FULL, GONE, HIT, ITEM_BYTES_MAX, MISS, STORED, Peer, absence
from gavel.training.environment import CacheNodes, cache_nodes_of

log = logging.getLogger("gavel.training")

# How many nodes may keep an item: the owner, and those that are next if it has no room.
OWNERS_MAX = 4
# How long the first process waits until all nodes answer. They start at the same time, but not all equally fast.
WAIT_S = 10.0
LOOK_S = 0.05
# The time for one attempt to connect within that.
CONNECT_S = 2.0


def owners(key: bytes, nodes: Iterable[str]) -> list[str]:
    """Return the nodes that may keep an item, the owner first."""
    return heapq.nsmallest(
        OWNERS_MAX, nodes, key=lambda node: blake2b(key + node.encode(), digest_size=8).digest()
    )


def partition_of(salt: bytes, items: int) -> Partition | None:
    """Return the partition of a data set in this job; None if its nodes share no cache."""
    nodes = cache_nodes_of()
    if nodes is None:
        return None
    partition = Partition(nodes, salt, items)
    peer_server.start(nodes)
    partition.wait(WAIT_S)
    return partition


class Partition:
    """A data set over the nodes of a gang. It may be inherited by a fork or pickled."""

    def __init__(self, nodes: CacheNodes, salt: bytes, items: int) -> None:
        self._own, self._names = nodes.own, tuple(nodes.addresses)
        self._peers = {
            name: Peer(name, address, nodes.secret, salt, items)
            for name, address in nodes.addresses.items()
            if name != nodes.own
        }
        self._logged: set[str] = set()

    def wait(self, wait_s: float) -> bool:
        """Wait until all nodes answer, or this time is over; return whether they do."""
        until_s = time.monotonic() + wait_s
        for peer in self._peers.values():
            while not peer.connect(CONNECT_S):
                if time.monotonic() >= until_s:
                    return False
                time.sleep(LOOK_S)
        return True

    def read(self, key: bytes, arena: Arena | None, fetch: Callable[[], bytes]) -> tuple[bytes, bool]:
        """Return an item that this node's arena does not have, and whether another node had it."""
        candidates = owners(key, self._names)
        # By node that has refused items: how many bytes are free there.
        free: dict[str, int] = {}
        for node in candidates:
            answer, content = self._ask(node, key, arena)
            if answer == HIT:
                return content, True
            if answer == GONE:
                return fetch(), False
            if answer == MISS:
                break
            (free[node],) = FREE.unpack(content)
        raw = fetch()
        if len(raw) > ITEM_BYTES_MAX:
            candidates = [self._own]
        for node in candidates:
            if len(raw) <= free.get(node, len(raw)) and self._give(node, key, raw, arena) != FULL:
                break
        return raw, False

    def _ask(self, node: str, key: bytes, arena: Arena | None) -> tuple[int, bytes]:
        if node == self._own:
            return absence(arena)
        peer = self._peers[node]
        answer = peer.get(key)
        self._log(peer)
        return answer

    def _give(self, node: str, key: bytes, raw: bytes, arena: Arena | None) -> int:
        if node == self._own:
            return STORED if arena is not None and arena.put(key, raw) else FULL
        return self._peers[node].put(key, raw)

    def _log(self, peer: Peer) -> None:
        if peer.fault and peer.name not in self._logged:
            self._logged.add(peer.name)
            log.warning(
                "gavel: node %s does not answer for its cached data (%s): they are read from storage while it does not",
                peer.name,
                peer.fault,
            )
