"""The server of a terminal, turn by turn, with a test in place of the process in the terminal."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tests.worker_agent.shim_runs import PATIENCE_S
from worker_agent.shim import frames
from worker_agent.shim.run_directory import RunDirectory
from worker_agent.shim.terminal import Ends, Server, listen
from worker_agent.shim.terminals import SOCKET


class OwnServer:
    """A server in this process, whose turns the test takes. The process in its terminal is played by the test."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        self.run = RunDirectory(tmp_path / "d")
        self.listener = listen(self.run.fd, SOCKET)
        self.input, to_process = os.pipe()
        from_process, self.output = os.pipe()
        code, self.code = os.pipe()
        self.server = Server(self.listener, Ends(to_process, from_process, False, code, None, PATIENCE_S))

    def attached(self) -> socket.socket:
        """Return a client whose session is open."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        client.connect(f"/proc/self/fd/{self.run.fd}/{SOCKET}")
        client.sendall(frames.pack(frames.OPEN, json.dumps({"session": "a", "offset": 0}).encode()))
        before = self.server._client
        while (now := self.server._client) is before or now is None or now.position is None:
            self.server._wait(PATIENCE_S)
        return client


def test_a_client_that_only_sends_takes_no_memory(tmp_path: Path) -> None:
    """While the client does not read, the arrival of its input is counted; afterwards it receives the newest count."""
    here = OwnServer(tmp_path)
    client, served = here.attached(), here.server._client
    assert served is not None
    served.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for _ in range(2000):
        client.sendall(frames.pack(frames.DATA, b"x"))
        # Once for the frame, and once for the process.
        here.server._wait(PATIENCE_S)
        here.server._wait(PATIENCE_S)
        assert os.read(here.input, 10) == b"x"
    assert len(served.out) < 100
    unpacker, count = frames.Frames(), 0
    while count < 2000:
        for kind, content in unpacker.feed(client.recv(1 << 16)):
            count = frames.input_bytes_of(content) if kind == frames.RECEIVED else 0
        here.server._wait(0.0)


def test_an_exit_code_goes_to_the_client_that_has_come_back(tmp_path: Path) -> None:
    """The server does not leave because the connection that the client has lost was the first to receive the code."""
    here = OwnServer(tmp_path)
    lost = here.attached()
    os.close(here.output)
    os.write(here.code, b"3")
    while here.server._client is None or not here.server._client.has_exit:
        here.server._wait(PATIENCE_S)
    client = here.attached()
    lost.close()
    assert not here.server._has_delivered
    assert frames.pack_exit(3) in client.recv(1 << 16)
    client.close()
    assert here.server.run()
