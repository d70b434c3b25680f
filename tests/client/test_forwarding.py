"""Forwarded ports: the ends of a connection on either side, and the end of the forwarding."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from gavel.client import Client, forwarding
from gavel.client.forwarding import Forwarding

PATIENCE_S = 60.0


class Session:
    """A session at a port whose program sends a greeting and closes the connection."""

    def __init__(self, client: object, job: str, **details: Any) -> None:
        """Take no notice of these."""

    def output(self) -> Iterator[bytes]:
        """Send the greeting."""
        yield b"bye"

    def send(self, data: bytes) -> None:
        """Keep nothing."""

    def end_input(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


def test_the_program_here_sees_that_the_one_on_the_node_has_closed_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even while the program here sends nothing, as one that reads an answer to its end."""
    monkeypatch.setattr(forwarding, "TerminalSession", Session)
    ports = Forwarding(8888, 0)
    ports.begin(cast(Client, None), "7", lambda error: None)
    with socket.create_connection(("127.0.0.1", ports.local_port), PATIENCE_S) as program:
        assert (program.recv(10), program.recv(10)) == (b"bye", b"")
    ports.close()
    # Not even one more, although a thread waits for connections.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.local_port), PATIENCE_S)
