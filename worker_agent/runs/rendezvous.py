"""The address and the ports at which the ranks of a job find each other."""

from __future__ import annotations

import socket

import msgspec


class CacheOffer(msgspec.Struct, frozen=True):
    """A port at which a job may pass cached items to its other nodes (0: no cache), and the first node's secret."""

    port: int = 0
    secret: str = ""


class CacheNode(msgspec.Struct, frozen=True):
    """The name of a node of a gang, and the address of its part of the cache; port 0: it has none."""

    name: str
    address: str
    port: int


class Rendezvous(msgspec.Struct, frozen=True):
    """An address of the first node, and two ports there: PyTorch's, and one at which ranks agree on the last step."""

    master_address: str
    master_port: int
    coordinator_port: int
    # All nodes of a gang, the first one first, and their secret; empty if none has a cache.
    cache_nodes: tuple[CacheNode, ...] = ()
    cache_secret: str = ""


class HeldPorts:
    """Ports at which ranks meet, reserved until the end of the run.

    Each port is bound with SO_REUSEADDR and never listens. So the kernel does not assign the port to a program that
    asks for any free one, but a rank can bind it if it sets SO_REUSEADDR, as PyTorch's TCPStore, gRPC and
    `gavel.training` do.
    """

    def __init__(self) -> None:
        self._sockets: dict[str, list[socket.socket]] = {}

    def take(self, lease: str, count: int = 2) -> tuple[int, ...]:
        """Return the ports for a lease: the same ones until they are released."""
        sockets = self._sockets.setdefault(lease, [])
        while len(sockets) < count:
            sockets.append(_bind_free_port())
        return tuple(int(reserved.getsockname()[1]) for reserved in sockets)

    def release(self, lease: str) -> None:
        """Release the ports of a lease, if it has any."""
        for reserved in self._sockets.pop(lease, ()):
            reserved.close()

    def close(self) -> None:
        """Release all ports."""
        for lease in list(self._sockets):
            self.release(lease)


def _bind_free_port() -> socket.socket:
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
    except OSError:
        reserved.close()
        raise
    return reserved


def on_this_node(ports: tuple[int, ...]) -> Rendezvous:
    """Return the rendezvous of a job that has all its ranks on this node."""
    master, coordinator = ports
    return Rendezvous("127.0.0.1", master, coordinator)
