"""Send logs and files to readers, whose requests come through the scheduler.

Each reader has a call of its own, so everything is sent at the reader's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

LOG = logging.getLogger(__name__)

# Yields the messages that answer a request. An OSError or ValueError is reported to the reader.
Read = Callable[[Any], AsyncIterator[Any]]


class Serving:
    """Answers requests of one kind with calls of the method `method`, whose messages are of the type `sent`."""

    def __init__(self, method: str, sent: type[Any], read: Read, readers_max: int) -> None:
        self._method, self._sent, self._read, self._readers_max = method, sent, read, readers_max
        # The tasks that send, by the ids of the calls.
        self._calls: dict[str, asyncio.Task[None]] = {}

    def on_request(self, request: Any, stub: Any, metadata: Any) -> None:
        """Begin to send to a reader, or stop sending."""
        if request.stop:
            task = self._calls.get(request.call)
            if task is not None:
                task.cancel()
        elif request.call not in self._calls:
            is_full = len(self._calls) >= self._readers_max
            task = asyncio.get_running_loop().create_task(self._send(request, stub, metadata, is_full))
            self._calls[request.call] = task
            task.add_done_callback(lambda done: self._calls.pop(request.call, None))

    def stop_all(self) -> None:
        """Stop sending to all readers, because the link is lost."""
        for task in list(self._calls.values()):
            task.cancel()

    async def _send(self, request: Any, stub: Any, metadata: Any, is_full: bool) -> None:
        call = getattr(stub, self._method)(metadata=metadata)
        error = f"this node serves {self._readers_max} readers already; try again later" if is_full else ""
        try:
            await call.write(self._sent(call=request.call))
            if not is_full:
                error = await self._send_messages(request, call)
            await call.write(self._sent(call=request.call, end=True, error=error))
            await call.done_writing()
            await call
        except (aio.AioRpcError, asyncio.InvalidStateError) as broken:
            LOG.debug("a reader is gone: %s", broken)
        finally:
            call.cancel()

    async def _send_messages(self, request: Any, call: Any) -> str:
        """Send everything that was requested, and return the error, or an empty text."""
        try:
            async with contextlib.aclosing(self._read(request)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    message.call = request.call
                    await call.write(message)
        except (OSError, ValueError) as error:
            return str(error)
        return ""
