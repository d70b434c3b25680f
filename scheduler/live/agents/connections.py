"""Connections of users to running jobs, relayed to the agents of their nodes: the `Connector` of the API.

    user ── Jobs.Connect ──► Pipe ──► Agents.ServeConnection ──► agent
    user ◄───────────────── Pipe ◄─────────────────────────────── agent

Both directions run at the pace of the slower side, because only a few messages wait in a Pipe.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.status import FORBIDDEN, INVALID, REFUSED, UNAVAILABLE, CallFailed
from scheduler.live.agents.links import Links

T = TypeVar("T")
# How many messages wait in one direction, and how many bytes a user's message may have, unknown fields included.
MESSAGES_MAX, MESSAGE_BYTES_MAX = 8, 1 << 16
# How long a node may take to answer ConnectionWanted.
ANSWER_S = 15.0


class Pipe(Generic[T]):
    """A short queue between one writer and one reader, which either of them can close."""

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False

    async def put(self, message: T) -> bool:
        """Add a message when there is room; return False if the pipe is closed."""
        while len(self._messages) >= MESSAGES_MAX and not self.is_closed:
            await self._change()
        if not self.is_closed:
            self._messages.append(message)
            self._changed.set()
        return not self.is_closed

    async def get(self) -> T | None:
        """Return the next message; None if the pipe is closed and empty."""
        while not (self._messages or self.is_closed):
            await self._change()
        self._changed.set()
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """End the pipe; messages that wait can still be read."""
        self.is_closed = True
        self._changed.set()

    async def _change(self) -> None:
        # Only one side waits at a time: the writer if the pipe is full, the reader if it is empty.
        self._changed.clear()
        await self._changed.wait()


class _Connection:
    """A connection between one user and one node."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.to_node, self.to_user = Pipe[jobs_pb2.ToJob](), Pipe[jobs_pb2.FromJob]()
        self.answered = False
        # Why the connection ended; None if the job has sent its last message.
        self.failure: CallFailed | None = CallFailed(UNAVAILABLE, f"the connection to {node} broke off")

    def end(self, failure: CallFailed | None) -> None:
        """End the connection, unless it has ended."""
        if not self.to_user.is_closed:
            self.failure = failure
            self.to_user.close()
            self.to_node.close()


class Connections:
    """Relays all connections of users to jobs."""

    def __init__(self, links: Links, answer_s: float = ANSWER_S) -> None:
        self._links, self._answer_s = links, answer_s
        # Name of a call → its connection.
        self._calls: dict[str, _Connection] = {}

    # ------------------------------------------------------------------------------------------- from the nodes

    async def serve(
        self, requests: AsyncIterator[pb.FromNode], names: Sequence[str] | None
    ) -> AsyncGenerator[jobs_pb2.ToJob, None]:
        """Serve a node's answer to ConnectionWanted; yield the user's messages.

        `names`: the names in the node's certificate; None without certificates.
        """
        first = await anext(requests, None)
        connection = None if first is None else self._calls.get(first.call)
        if connection is None or connection.answered:
            # The user has left.
            return
        if names is not None and f"node:{connection.node}" not in names:
            raise CallFailed(FORBIDDEN, "this connection was asked of another node")
        connection.answered = True
        receiving = asyncio.create_task(_receive(connection, requests))
        try:
            while (message := await connection.to_node.get()) is not None:
                yield message
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            connection.end(CallFailed(UNAVAILABLE, f"the connection to {connection.node} broke off"))

    # ----------------------------------------------------------------------------------------------- for the API

    async def connect(
        self,
        lease: str,
        opening: jobs_pb2.OpenConnection,
        requests: AsyncIterator[jobs_pb2.ToJob],
        limit: Coroutine[Any, Any, CallFailed],
    ) -> AsyncGenerator[jobs_pb2.FromJob, None]:
        """Connect a user to the job of a lease, on the node in `opening`. Yield the job's messages.

        `limit` returns when the user may not be connected any more.
        """
        node = opening.node
        link = self._links.by_name.get(node)
        if link is None:
            limit.close()
            raise CallFailed(UNAVAILABLE, f"{node} cannot be reached", retry_s=1.0)
        name = secrets.token_hex(16)
        connection = self._calls[name] = _Connection(node)
        wanted = pb.ConnectionWanted(call=name, lease=lease, open=opening)
        link.outbox.put(pb.SchedulerMessage(connection_wanted=wanted))

        def cut_off(_: object = None) -> None:
            connection.end(CallFailed(UNAVAILABLE, f"{node} cannot be reached any more"))

        def check_answer() -> None:
            if not connection.answered:
                why = f"{node} gave no answer within {self._answer_s:g} s"
                connection.end(CallFailed(UNAVAILABLE, why))

        async def end_at_limit() -> None:
            connection.end(await limit)

        link.closed.add_done_callback(cut_off)
        timer = asyncio.get_running_loop().call_later(self._answer_s, check_answer)
        tasks = [asyncio.create_task(_send(connection, requests)), asyncio.create_task(end_at_limit())]
        try:
            while (message := await connection.to_user.get()) is not None:
                yield message
            if connection.failure is not None:
                raise connection.failure
        finally:
            timer.cancel()
            link.closed.remove_done_callback(cut_off)
            del self._calls[name]
            connection.end(None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not link.closed.done():
                # The agent does not read the end of its call while the job takes no input.
                stop = pb.ConnectionWanted(call=name, stop=True)
                link.outbox.put(pb.SchedulerMessage(connection_wanted=stop))


async def _receive(connection: _Connection, requests: AsyncIterator[pb.FromNode]) -> None:
    """Pass the messages of a node to the user, at the user's pace; end the connection with the last one."""
    async for sent in requests:
        if sent.error:
            connection.end(CallFailed(REFUSED, sent.error[:500]))
            return
        if not await connection.to_user.put(sent.message):
            return
        if sent.message.HasField("exit_code"):
            connection.end(None)
            return
    connection.end(CallFailed(UNAVAILABLE, f"the connection to {connection.node} broke off"))


async def _send(connection: _Connection, requests: AsyncIterator[jobs_pb2.ToJob]) -> None:
    """Pass the messages of a user to the node, at the pace of the job."""
    try:
        async for message in requests:
            if message.HasField("open") or message.ByteSize() > MESSAGE_BYTES_MAX:
                raise CallFailed(
                    INVALID, f"only the first message opens; others have at most {MESSAGE_BYTES_MAX:,} bytes"
                )
            if not await connection.to_node.put(message):
                return
        # The user has left.
        connection.end(None)
    except CallFailed as failed:
        connection.end(failed)
