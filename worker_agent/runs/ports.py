"""Connections to ports on this node, for users whose jobs listen there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

from worker_agent.runs.terminals import NoTerminal, close
from worker_agent.shim import frames

# How often we check whether the job still runs.
LOOK_INTERVAL_S = 0.5
_READ_BYTES = 1 << 15


class PortConnection:
    """A connection to a port of this node, with the methods of a TerminalConnection. It ends with its job."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, alive: Callable[[], bool]
    ) -> None:
        self._reader, self._writer, self._alive = reader, writer, alive
        # How much input has arrived, and an event for each change.
        self._input_bytes, self._changed = 0, asyncio.Event()

    async def open(self, session: str, offset: int) -> None:
        """Do nothing: a port has no sessions."""

    async def write(self, data: bytes) -> None:
        """Send data at the pace of the program that listens, and report that it has arrived."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
        self._input_bytes += len(data)
        self._changed.set()

    async def resize(self, rows: int, columns: int) -> None:
        """Do nothing: a port has no size."""

    async def end_input(self) -> None:
        """Close our side of the connection."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield kind and content of what arrives, and at the end an exit code of 0."""
        opened = {"offset": 0, "input_bytes": 0, "keep_s": 0.0, "tty": False}
        yield frames.OPEN, json.dumps(opened).encode()
        reading = asyncio.ensure_future(self._reader.read(_READ_BYTES))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while self._alive():
                await asyncio.wait(
                    {reading, changed}, timeout=LOOK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
                )
                if changed.done():
                    self._changed.clear()
                    yield frames.RECEIVED, frames.input_bytes_content(self._input_bytes)
                    changed = asyncio.ensure_future(self._changed.wait())
                if reading.done():
                    data = b"" if reading.exception() else reading.result()
                    if not data:
                        break
                    yield frames.DATA, data
                    reading = asyncio.ensure_future(self._reader.read(_READ_BYTES))
            yield frames.EXIT, frames.exit_content(0)
        finally:
            reading.cancel()
            changed.cancel()

    def close(self) -> None:
        """Close the connection."""
        close(self._writer)


async def connect_to_port(port: int, alive: Callable[[], bool]) -> PortConnection:
    """Connect to a port of this node, as any program of the job could; raise NoTerminal if nothing listens there."""
    if not alive():
        raise NoTerminal("it does not run on this node")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES)
    except OSError as error:
        raise NoTerminal(f"nothing listens at port {port} of its node: {error.strerror or error}") from error
    return PortConnection(reader, writer, alive)
