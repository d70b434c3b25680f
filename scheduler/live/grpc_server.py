"""A gRPC server that no caller can close.

The main loop of `grpc.aio` decodes the name of every unknown method. A name that is not UTF-8 raises an error there,
which ends the loop and closes the port for good while the process lives on. A single request can do that, even without
a token. Here, the calls of unknown methods never reach that loop: they are answered UNIMPLEMENTED, whatever their name.
The generated code registers all known methods by name, so none of them is refused.

This overrides two internals of grpcio, so a test in `tests/live/test_listening.py` sends such a request to a port. If
anything else ends the loop, `ended` reports why, and the daemon stops with an error. The service manager then starts it
again.
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
        """Wait until the server stops by itself, and return why; empty if it still runs after `within_s`."""
        try:
            runs = await self.wait_for_termination(within_s)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if runs else "it was shut down"


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    """A server core that keeps the calls of unknown methods away from the main loop."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:
            call: asyncio.Future[Any] = super()._make_request_call_future(method)
            return call
        return asyncio.get_running_loop().create_task(self._refuse_unknown())

    async def _refuse_unknown(self) -> None:
        """Refuse calls of unknown methods. When the server shuts down, waiting for the next call raises an error."""
        refusals: set[asyncio.Task[None]] = set()
        while True:
            call = await self._request_call()
            task = asyncio.create_task(_refuse(call))
            refusals.add(task)
            task.add_done_callback(refusals.discard)


async def _refuse(call: Any) -> None:
    context = cygrpc._ServicerContext(call, None, None, asyncio.get_running_loop())
    try:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method in this release")
    # This is an AbortError, or the caller has left.
    except Exception as error:
        log.debug("refused the call of an unknown method: %r", error)
