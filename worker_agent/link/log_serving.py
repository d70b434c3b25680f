"""Send logs to readers, whose requests come through the scheduler.

Each reader has a call of its own, so output is sent at the reader's pace.
"""

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

ReadLog = Callable[[pb.LogsWanted], AsyncIterator[Chunk]]


class LogServing:
    """Sends this node's logs to their readers. `read_log` yields the output that a reader requested."""

    def __init__(self, read_log: ReadLog) -> None:
        self._read_log = read_log
        # The tasks that send, by the ids of the calls.
        self._calls: dict[str, asyncio.Task[None]] = {}

    def on_request(self, request: pb.LogsWanted, stub: Any, metadata: Any) -> None:
        """Begin to send a log to a reader, or stop sending it."""
        if request.stop:
            task = self._calls.get(request.call)
            if task is not None:
                task.cancel()
        elif request.call not in self._calls:
            is_full = len(self._calls) >= READERS_MAX
            task = asyncio.get_running_loop().create_task(self._send(request, stub, metadata, is_full))
            self._calls[request.call] = task
            task.add_done_callback(lambda done: self._calls.pop(request.call, None))

    def stop_all(self) -> None:
        """Stop sending all logs, because the link is lost."""
        for task in list(self._calls.values()):
            task.cancel()

    async def _send(self, request: pb.LogsWanted, stub: Any, metadata: Any, is_full: bool) -> None:
        call = stub.SendLogs(metadata=metadata)
        error = f"this node serves {READERS_MAX} log readers already; try again later" if is_full else ""
        try:
            await call.write(pb.SentLogs(call=request.call))
            if not is_full:
                error = await self._send_chunks(request, call)
            await call.write(pb.SentLogs(call=request.call, end=True, error=error))
            await call.done_writing()
            await call
        except (aio.AioRpcError, asyncio.InvalidStateError) as broken:
            LOG.debug("a reader of logs is gone: %s", broken)
        finally:
            call.cancel()

    async def _send_chunks(self, request: pb.LogsWanted, call: Any) -> str:
        """Send all requested output, and return the error, or an empty text."""
        try:
            async with contextlib.aclosing(self._read_log(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    message = jobs_pb2.LogChunk(
                        job=request.job,
                        attempt=chunk.attempt,
                        rank=chunk.rank,
                        offset=chunk.offset,
                        data=chunk.data,
                    )
                    await call.write(pb.SentLogs(call=request.call, chunk=message))
        except (OSError, ValueError) as error:
            return str(error)
        return ""
