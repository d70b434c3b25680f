"""Logs for readers who ask the scheduler for them: one call for each reader, at the reader's pace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from worker_agent.runs.logs import Chunk

LOG = logging.getLogger(__name__)
READERS_MAX = 64

Reading = Callable[[pb.LogsWanted], AsyncIterator[Chunk]]


class LogServing:
    """All readings of this node's logs. `reading` opens one."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._calls: dict[str, asyncio.Task[None]] = {}

    def on_wanted(self, wanted: pb.LogsWanted, stub: Any, metadata: Any) -> None:
        """Begin to send a log to a reader, or stop."""
        if wanted.stop:
            task = self._calls.get(wanted.call)
            if task is not None:
                task.cancel()
        elif wanted.call not in self._calls:
            full = len(self._calls) >= READERS_MAX
            task = asyncio.get_running_loop().create_task(self._send(wanted, stub, metadata, full))
            self._calls[wanted.call] = task
            task.add_done_callback(lambda done: self._calls.pop(wanted.call, None))

    def stop_all(self) -> None:
        """Stop all readings, because the link is gone."""
        for task in list(self._calls.values()):
            task.cancel()

    async def _send(self, wanted: pb.LogsWanted, stub: Any, metadata: Any, full: bool) -> None:
        call = stub.SendLogs(metadata=metadata)
        error = f"{READERS_MAX} readers of logs are served here already; try again later" if full else ""
        try:
            await call.write(pb.SentLogs(call=wanted.call))
            if not full:
                error = await self._send_chunks(wanted, call)
            await call.write(pb.SentLogs(call=wanted.call, end=True, error=error))
            await call.done_writing()
            await call
        except (aio.AioRpcError, asyncio.InvalidStateError) as broken:
            LOG.debug("a reader of logs is gone: %s", broken)
        finally:
            call.cancel()

    async def _send_chunks(self, wanted: pb.LogsWanted, call: Any) -> str:
        """Send until there is no more, and return what went wrong."""
        try:
            async with contextlib.aclosing(self._reading(wanted)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    message = jobs_pb2.LogChunk(
                        job=wanted.job,
                        attempt=chunk.attempt,
                        rank=chunk.rank,
                        offset=chunk.offset,
                        data=chunk.data,
                    )
                    await call.write(pb.SentLogs(call=wanted.call, chunk=message))
        except (OSError, ValueError) as error:
            return str(error)
        return ""
