"""Serve users, whose requests come through the scheduler; above all, send logs and files to their readers.

Each request is answered with a call of its own, so everything is sent at the reader's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

LOG = logging.getLogger(__name__)

# Yields the messages that answer a request. An OSError or ValueError is reported to the reader.
Read = Callable[[Any], AsyncIterator[Any]]


class Calls(ABC):
    """The calls with which a node answers requests of one kind."""

    def __init__(self, calls_max: int, stop_s: float = 0.0) -> None:
        """`stop_s`: how long a call may go on after the request to stop it."""
        self._calls_max, self._stop_s = calls_max, stop_s
        # The tasks that serve them, by id.
        self._calls: dict[str, asyncio.Task[None]] = {}

    def on_request(self, request: Any, stub: Any, metadata: Any) -> None:
        """Begin a call, or stop one."""
        loop, task = asyncio.get_running_loop(), self._calls.get(request.call)
        if request.stop:
            if task is not None:
                loop.call_later(self._stop_s, task.cancel)
        elif task is None:
            is_full = len(self._calls) >= self._calls_max
            task = loop.create_task(self._serve(request, stub, metadata, is_full))
            self._calls[request.call] = task
            task.add_done_callback(lambda done: self._calls.pop(request.call, None))

    def stop_all(self) -> None:
        """End all calls, because the link is lost."""
        for task in list(self._calls.values()):
            task.cancel()

    @abstractmethod
    async def _serve(self, request: Any, stub: Any, metadata: Any, is_full: bool) -> None:
        """Serve one call. `is_full`: there are too many others, so only say that."""


class Serving(Calls):
    """Answers requests of one kind with calls of the method `method`, whose messages are of the type `sent`."""

    def __init__(self, method: str, sent: type[Any], read: Read, readers_max: int) -> None:
        super().__init__(readers_max)
        self._method, self._sent, self._read = method, sent, read

    async def _serve(self, request: Any, stub: Any, metadata: Any, is_full: bool) -> None:
        call = getattr(stub, self._method)(metadata=metadata)
        error = f"this node serves {self._calls_max} readers already; try again later" if is_full else ""
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
