"""A gRPC server that no caller can close.

The main loop of `grpc.aio` decodes the name of every method that it does not know. A name that is not UTF-8 raises
there, which ends the loop and closes the port for good while the process lives on; one request without a token is
enough. Here the calls of unknown methods never reach that loop: they are answered UNIMPLEMENTED, whatever their name.
All methods that are served are registered by name, which the generated code does.

This overrides two internals of grpcio, so `tests/live/test_listening.py` sends such a request to a real port. Whatever
else might end the loop, `ended` tells, and the daemon stops with an error so that it is started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import ServerInterceptor
from grpc.aio._server import Server

log = logging.getLogger(__name__)


class SturdyServer(Server):
    """`grpc.aio.Server` with a main loop that odd method names cannot end."""

    def __init__(self, interceptors: Sequence[ServerInterceptor], options: Sequence[tuple[str, Any]]) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), tuple(interceptors), tuple(options), None)

    async def ended(self, within_s: float) -> str:
        """Why the server has stopped by itself; empty: within so many seconds it did not."""
        try:
            runs = await self.wait_for_termination(within_s)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if runs else "it was shut down"


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    """Takes the calls of unknown methods away from the main loop."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:
            call: asyncio.Future[Any] = super()._make_request_call_future(method)
            return call
        return asyncio.get_running_loop().create_task(self._refuse_unknown())

    async def _refuse_unknown(self) -> None:
        """Answer the calls of unknown methods, until the server shuts down: then asking for the next one raises."""
        answering: set[asyncio.Task[None]] = set()
        while True:
            call = await self._request_call()
            task = asyncio.create_task(_refuse(call))
            answering.add(task)
            task.add_done_callback(answering.discard)


async def _refuse(call: Any) -> None:
    context = cygrpc._ServicerContext(call, None, None, asyncio.get_running_loop())
    try:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method in this release")
    except Exception as error:  # AbortError, or the caller has gone
        log.debug("refused the call of an unknown method: %r", error)
