"""The address and the ports at which the ranks of a job find each other."""

from __future__ import annotations

import socket

import msgspec


class Rendezvous(msgspec.Struct, frozen=True):
    """An address of the first node, and two ports there: PyTorch's, and one to agree on the last step."""

    master_address: str
    master_port: int
    coordinator_port: int


class HeldPorts:
    """Ports at which ranks meet, reserved until the end of the run.

    Each is bound with SO_REUSEADDR and never listens. So the kernel never assigns it to a program that asks for any
    free port, while a rank can bind exactly this port with SO_REUSEADDR, as PyTorch's TCPStore, gRPC and
    `gavel.training` do.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[socket.socket]] = {}

    def take(self, lease: str, count: int = 2) -> tuple[int, ...]:
        """Return the ports for a lease: the same ones until they are released."""
        held = self._held.setdefault(lease, [])
        while len(held) < count:
            held.append(_bound())
        return tuple(int(each.getsockname()[1]) for each in held)

    def release(self, lease: str) -> None:
        """Release the ports of a lease, if it has any."""
        for held in self._held.pop(lease, ()):
            held.close()

    def close(self) -> None:
        """Release all ports."""
        for lease in list(self._held):
            self.release(lease)


def _bound() -> socket.socket:
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def on_this_node(ports: tuple[int, ...]) -> Rendezvous:
    """Return the rendezvous of a job that has all its ranks on this node."""
    return Rendezvous("127.0.0.1", *ports)
