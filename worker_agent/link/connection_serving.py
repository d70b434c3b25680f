"""Connect users to jobs on this node. The requests come through the scheduler, and so does all they send and receive.

Each connection has a call of its own, so it runs at the pace of its user, and its end is the end of the call.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from worker_agent.link.serving import Calls
from worker_agent.runs.ports import PortConnection
from worker_agent.runs.terminals import NoTerminal, TerminalConnection
from worker_agent.shim import frames

LOG = logging.getLogger(__name__)
CONNECTIONS_MAX = 512
# How long a job may take to receive the last input of a user who has left.
LEAVE_S = 5.0
FULL = f"this node serves {CONNECTIONS_MAX} connections already; try again later"
OFF = "terminals are off on this node (`terminals` in the settings of its agent)"
REPLACED = "another `gavel attach` took over this terminal"

Connection = TerminalConnection | PortConnection
Connect = Callable[[pb.ConnectionWanted], Awaitable[Connection]]


class ConnectionServing(Calls):
    """The connections of users to jobs on this node."""

    def __init__(self, connect: Connect, *, is_on: bool = True) -> None:
        """`connect` opens the connection that a user requested, or raises NoTerminal."""
        super().__init__(CONNECTIONS_MAX, LEAVE_S)
        self._connect, self._is_on = connect, is_on

    async def _serve(self, request: pb.ConnectionWanted, stub: Any, metadata: Any, is_full: bool) -> None:
        """Pass on what the user and the job send until one of them has left."""
        call = stub.ServeConnection(metadata=metadata)
        opened: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        to_user = asyncio.create_task(self._to_user(request, call, opened, is_full))
        to_job = asyncio.create_task(_to_job(call, opened))
        try:
            await asyncio.wait({to_user, to_job}, return_when=asyncio.FIRST_COMPLETED)
            if to_user.done():
                if error := to_user.result():
                    await call.write(pb.FromNode(error=error))
                await call.done_writing()
                # The scheduler ends the call when it has read everything. Cancelling the task would end it now.
                await to_job
        except (aio.AioRpcError, asyncio.InvalidStateError) as broken:
            LOG.debug("a connection to a job broke: %s", broken)
        finally:
            call.cancel()
            for task in (to_user, to_job):
                task.cancel()
            await asyncio.gather(to_user, to_job, return_exceptions=True)
            if opened.done() and (connection := opened.result()) is not None:
                connection.close()

    async def _to_user(
        self,
        request: pb.ConnectionWanted,
        call: Any,
        opened: asyncio.Future[Connection | None],
        is_full: bool,
    ) -> str:
        """Connect to the job and send its messages until its end; return why there is no connection (any more)."""
        opening = request.open
        await call.write(pb.FromNode(call=request.call))
        try:
            if is_full or not self._is_on:
                raise NoTerminal(FULL if self._is_on else OFF)
            connection = await self._connect(request)
        except NoTerminal as error:
            opened.set_result(None)
            return str(error)
        opened.set_result(connection)
        await connection.open(opening.session, opening.offset)
        if opening.HasField("size"):
            await connection.resize(opening.size.rows, opening.size.columns)
        async for kind, content in connection.frames():
            if kind == frames.REPLACED:
                return REPLACED
            await call.write(pb.FromNode(message=_message(kind, content)))
            if kind == frames.EXIT:
                return ""
        return "its terminal was closed"


async def _to_job(call: Any, opened: asyncio.Future[Connection | None]) -> None:
    """Pass on the user's messages until the user has left."""
    while (message := await call.read()) is not aio.EOF:
        connection = await asyncio.shield(opened)
        if connection is None:
            continue
        if message.HasField("size"):
            await connection.resize(message.size.rows, message.size.columns)
        if message.data:
            await connection.write(message.data)
        if message.end:
            await connection.end_input()


def _message(kind: bytes, content: bytes) -> jobs_pb2.FromJob:
    """Return the message to a user for a frame from a terminal."""
    if kind == frames.OPEN:
        return jobs_pb2.FromJob(opened=jobs_pb2.ConnectionOpened(**json.loads(content)))
    if kind == frames.RECEIVED:
        return jobs_pb2.FromJob(input_bytes=frames.input_bytes_of(content))
    if kind == frames.EXIT:
        return jobs_pb2.FromJob(exit_code=frames.exit_of(content))
    return jobs_pb2.FromJob(data=content)
