"""Connections of users to jobs, at the agent's end: a real scheduler relays, and the terminal behaves in any way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from tests.live.agents.test_connections import User, next_wanted
from tests.support.linked import Peer, Scheduler, on_event_loop, until
from worker_agent.link.connection_serving import Connect, ConnectionServing
from worker_agent.shim import frames


class StuckTerminal:
    """A terminal whose process takes no input. It sends these frames."""

    def __init__(self, *sent: tuple[bytes, bytes]) -> None:
        self._sent = sent
        self.takes_input, self.is_closed = asyncio.Event(), False

    async def open(self, session: str, offset: int) -> None:
        """Open at once."""

    async def write(self, data: bytes) -> None:
        """Take nothing."""
        self.takes_input.set()
        await asyncio.Event().wait()

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the frames when there is input."""
        await self.takes_input.wait()
        for frame in self._sent:
            yield frame
        await asyncio.Event().wait()

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class Connected(NamedTuple):
    """A user, who has sent more than a connection can hold, and the agent."""

    user: User
    first: asyncio.Task[jobs_pb2.FromJob]
    serving: ConnectionServing


async def connected(scheduler: Scheduler, peer: Peer, connect: Any) -> Connected:
    """Connect a user through an agent with this function."""
    user, serving = User(scheduler), ConnectionServing(cast(Connect, connect))
    first = asyncio.create_task(user.next())
    serving.on_request(await next_wanted(peer), peer.stub, None)
    for _ in range(100):
        await user.queue.put(jobs_pb2.ToJob(data=b"x" * 60_000))
    return Connected(user, first, serving)


async def leave(connected: Connected, peer: Peer) -> None:
    """Let the user leave, and wait until the agent has closed the connection."""
    user, first, serving = connected
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await user.messages.aclose()
    serving.on_request(await next_wanted(peer, stop=True), peer.stub, None)
    await until(lambda: not serving._calls)


@on_event_loop
async def test_a_user_who_leaves_before_the_terminal_opens_is_not_connected_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise such connections would fill the node, and take the terminal from a user who has come back."""
    monkeypatch.setattr("worker_agent.link.connection_serving.LEAVE_S", 0.05)
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()

        async def connect(request: pb.ConnectionWanted) -> StuckTerminal:
            await asyncio.Event().wait()
            raise AssertionError("it is not opened")

        await leave(await connected(scheduler, peer, connect), peer)


@on_event_loop
async def test_input_that_no_process_takes_keeps_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends with the exit code, or when the user leaves."""
    monkeypatch.setattr("worker_agent.link.connection_serving.LEAVE_S", 0.05)
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        for sent in ([(frames.EXIT, frames.exit_content(3))], []):
            terminal = StuckTerminal(*sent)

            async def connect(
                request: pb.ConnectionWanted, terminal: StuckTerminal = terminal
            ) -> StuckTerminal:
                return terminal

            here = await connected(scheduler, peer, connect)
            await terminal.takes_input.wait()
            if sent:
                assert (await here.first).exit_code == 3
            await leave(here, peer)
            assert terminal.is_closed
