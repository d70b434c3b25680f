"""Where the ranks of a job find each other."""

from __future__ import annotations

import contextlib
import socket

import msgspec


class Rendezvous(msgspec.Struct, frozen=True):
    """An address of the first node, and two ports there: PyTorch's, and the one to agree on the last step."""

    master_address: str
    master_port: int
    coordinator_port: int


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody has at the moment. All are held while they are chosen, so that they differ."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind(("", 0))
            ports.append(int(held.getsockname()[1]))
        return tuple(ports)


def on_this_node() -> Rendezvous:
    """For a job that has all its ranks here."""
    return Rendezvous("127.0.0.1", *free_ports(2))
