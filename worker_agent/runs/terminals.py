"""The agent's connections to the terminals of runs, whose servers (shim/terminal.py) outlive the agent.

A job owns its run directory and may put another socket there, or a link to one, such as that of another user's
terminal. So the agent speaks only to a socket in the directory itself whose server runs as the agent's own user.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from worker_agent.shim import frames
from worker_agent.shim.run_directory import RunDirectory
from worker_agent.shim.terminal import peer_uid
from worker_agent.shim.terminals import SHELLS

# How often we look for a terminal that is not open yet, and how many refusals in a row mean that its server is gone.
LOOK_INTERVAL_S, REFUSALS_MAX = 0.05, 4
# How many shells may be open beside a job, and how long a shim may take to open one.
SHELLS_MAX, SHELL_S = 16, 10.0
# How long a process may take to receive input that was written before a connection is closed.
FLUSH_S = 5.0
# How long a shell beside a job continues without a client.
SHELL_KEEP_S = 60.0
_READ_BYTES = 1 << 16
REPLACED = "a process of the job has replaced the socket of its terminal"


class NoTerminal(Exception):
    """There is no terminal to connect to; the message is for the user."""


class TerminalConnection:
    """A connection to a terminal."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def open(self, session: str, offset: int) -> None:
        """Open or continue a session; output follows from this position."""
        await self._send(
            frames.pack(frames.OPEN, json.dumps({"session": session, "offset": offset}).encode())
        )

    async def write(self, data: bytes) -> None:
        """Send input, at the pace of the process in the terminal."""
        await self._send(frames.pack(frames.DATA, data))

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        await self._send(frames.pack_size(rows, columns))

    async def end_input(self) -> None:
        """Send the end of the input."""
        await self._send(frames.pack(frames.END))

    async def _send(self, frame: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(frame)
            await self._writer.drain()

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield kind and content of each frame from the terminal until it closes the connection."""
        unpacker = frames.Frames()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                for kind, content in unpacker.feed(data):
                    yield kind, content

    def close(self) -> None:
        """Leave the terminal; its process continues. Input that it does not take soon is dropped."""
        close(self._writer)


def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection. asyncio itself would wait without end for a process that takes no input."""
    writer.close()
    asyncio.get_running_loop().call_later(FLUSH_S, writer.transport.abort)


def want_shell(directory: RunDirectory, lease: str, shell: Mapping[str, Any]) -> None:
    """Ask the shim of a run for a shell, unless it was asked for before. Raises NoTerminal if there are too many.

    `shell`: its `name`, and `tty`, `rows`, `columns` and `term`.
    """
    shell = {**shell, "keep_s": SHELL_KEEP_S}
    shells = (directory.read(SHELLS, owner=os.geteuid()) or {}).get("shells", [])
    if any(other["name"] == shell["name"] for other in shells):
        return
    if sum(name.startswith("shell-") for name in os.listdir(directory.fd)) >= SHELLS_MAX:
        raise NoTerminal(f"{SHELLS_MAX} shells are open beside this job; close one first")
    try:
        directory.write(SHELLS, {"lease": lease, "shells": [*shells, shell][-SHELLS_MAX:]}, mode=0o600)
    except OSError as error:
        raise NoTerminal(f"a shell cannot be opened: {error.strerror}") from error


async def connect(
    path: Path, name: str, alive: Callable[[], bool], wait_s: float = math.inf
) -> TerminalConnection:
    """Connect to a terminal of the run in this directory, and wait up to `wait_s` for it while the run is `alive`.

    Raises NoTerminal if the run ends first, or if nothing that we trust serves the terminal.
    """
    refusals, end_s = 0, time.monotonic() + wait_s
    while refusals < REFUSALS_MAX and time.monotonic() < end_s:
        try:
            return await _connect(path, name)
        except ConnectionRefusedError:
            refusals += 1
        except FileNotFoundError:
            refusals = 0
        except OSError as error:
            raise NoTerminal(f"its terminal cannot be reached: {error.strerror or error}") from error
        if not alive():
            raise NoTerminal("it has ended on its node")
        await asyncio.sleep(LOOK_INTERVAL_S)
    raise NoTerminal("its terminal was closed")


async def _connect(path: Path, name: str) -> TerminalConnection:
    with RunDirectory(path) as directory:
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    with contextlib.ExitStack() as on_error:
        connection = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.setblocking(False)
        try:
            if not stat.S_ISSOCK(os.fstat(file).st_mode):
                raise NoTerminal(REPLACED)
            # This path leads to the socket itself, whatever the job puts in its place. It has less than 108 bytes.
            await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        if peer_uid(connection) != os.geteuid():
            raise NoTerminal(REPLACED)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_READ_BYTES)
        on_error.pop_all()
    return TerminalConnection(reader, writer)
