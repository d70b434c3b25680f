"""Connections of users to jobs, relayed through the scheduler: pace, ends of either side, and strange callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.status import FORBIDDEN, INVALID, REFUSED, UNAUTHENTICATED, UNAVAILABLE, CallFailed
from scheduler.live.agents.connections import MESSAGE_BYTES_MAX, MESSAGES_MAX, Connections, Pipe
from tests.support.linked import Peer, Scheduler, on_event_loop, until


class User:
    """A user of a connection to n1: sends messages from a queue, and keeps what arrives."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.queue: asyncio.Queue[jobs_pb2.ToJob | None] = asyncio.Queue()
        self.limit: asyncio.Future[CallFailed] = asyncio.get_running_loop().create_future()
        self.sent = 0
        opening = jobs_pb2.OpenConnection(job="1", session="ab", node="n1")
        self.messages = scheduler.connections.connect("7", opening, self._requests(), self._until_limit())

    async def _requests(self) -> AsyncIterator[jobs_pb2.ToJob]:
        while (message := await self.queue.get()) is not None:
            self.sent += 1
            yield message

    async def _until_limit(self) -> CallFailed:
        return await self.limit

    async def next(self) -> jobs_pb2.FromJob:
        """Return the next message."""
        return await anext(self.messages)

    async def failure(self) -> CallFailed:
        """Wait for the error that ends the connection."""
        with pytest.raises(CallFailed) as failed:
            async for _ in self.messages:
                pass
        return failed.value


async def next_wanted(peer: Peer, *, stop: bool = False) -> pb.ConnectionWanted:
    """Return the next request for a connection or, with `stop`, for the end of one."""
    while (wanted := (await peer.next("connection_wanted")).connection_wanted).stop != stop:
        pass
    return wanted


async def connected(scheduler: Scheduler, peer: Peer) -> tuple[User, asyncio.Task[jobs_pb2.FromJob], Any]:
    """Connect a user to a node; return the user, its wait for the first message, and the node's call."""
    user = User(scheduler)
    first = asyncio.create_task(user.next())
    wanted = await next_wanted(peer)
    assert (wanted.lease, wanted.open.job) == ("7", "1")
    call = peer.stub.ServeConnection()
    await call.write(pb.FromNode(call=wanted.call))
    return user, first, call


@on_event_loop
async def test_messages_pass_in_both_directions_until_the_exit() -> None:
    """The node's call and the user's connection end with the exit code."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        user, first, call = await connected(scheduler, peer)
        await call.write(pb.FromNode(message=jobs_pb2.FromJob(data=b"hello")))
        assert (await first).data == b"hello"
        await user.queue.put(jobs_pb2.ToJob(data=b"ls"))
        assert (await call.read()).data == b"ls"
        await call.write(pb.FromNode(message=jobs_pb2.FromJob(exit_code=0)))
        assert (await user.next()).exit_code == 0
        with pytest.raises(StopAsyncIteration):
            await user.next()
        assert await call.read() is aio.EOF


@on_event_loop
async def test_both_directions_run_at_the_pace_of_the_slower_side() -> None:
    """While one side does not read, few messages wait in the scheduler; afterwards all of them arrive in order."""
    pipe = Pipe[int]()
    filling = asyncio.create_task(fill(pipe, 100))
    await until(lambda: len(pipe._messages) == MESSAGES_MAX)
    await asyncio.sleep(0)
    assert len(pipe._messages) == MESSAGES_MAX
    assert [await pipe.get() for _ in range(100)] == list(range(100))
    await filling
    pipe.close()
    assert (await pipe.get(), await pipe.put(1)) == (None, False)


async def fill(pipe: Pipe[int], count: int) -> None:
    """Put numbers into a pipe."""
    for number in range(count):
        assert await pipe.put(number)


@on_event_loop
async def test_each_side_learns_that_the_other_has_gone() -> None:
    """A user who leaves ends the node's call; an error of the node, and its lost link, end the user's connection."""
    async with Scheduler() as scheduler:
        peer = scheduler.peer("n1")
        await peer.__aenter__()
        await peer.join()
        user, first, call = await connected(scheduler, peer)
        await user.queue.put(None)
        assert await call.read() is aio.EOF
        with pytest.raises(StopAsyncIteration):
            await first
        assert (await next_wanted(peer, stop=True)).call
        user, first, call = await connected(scheduler, peer)
        await call.write(pb.FromNode(error="it is off"))
        with pytest.raises(CallFailed) as failed:
            await first
        assert (failed.value.reason, str(failed.value)) == (REFUSED, "it is off")
        user, first, call = await connected(scheduler, peer)
        call.cancel()
        with pytest.raises(CallFailed) as failed:
            await first
        assert failed.value.reason == UNAVAILABLE
        user, first, call = await connected(scheduler, peer)
        await peer.drop()
        with pytest.raises(CallFailed) as failed:
            await first
        assert failed.value.reason == UNAVAILABLE
        assert (await User(scheduler).failure()).reason == UNAVAILABLE


@on_event_loop
async def test_what_ends_a_connection_from_outside() -> None:
    """An invalid message of the user, and the end of the user's token."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        data = jobs_pb2.ToJob(data=b"x" * MESSAGE_BYTES_MAX)
        # Field 100, which does not exist.
        unknown = jobs_pb2.ToJob.FromString(b"\xa2\x06\x80\x80\x04" + b"x" * MESSAGE_BYTES_MAX)
        for message in (data, unknown, jobs_pb2.ToJob(open={})):
            user, first, _ = await connected(scheduler, peer)
            await user.queue.put(message)
            with pytest.raises(CallFailed) as failed:
                await first
            assert failed.value.reason == INVALID
        user, first, _ = await connected(scheduler, peer)
        user.limit.set_result(CallFailed(UNAUTHENTICATED, "expired"))
        with pytest.raises(CallFailed) as failed:
            await first
        assert failed.value.reason == UNAUTHENTICATED


@on_event_loop
async def test_only_the_node_that_was_asked_may_answer_and_only_once() -> None:
    """A call with an unknown name ends at once, a second one for the same connection, too; another node is refused."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        await connected(scheduler, peer)
        (name,) = scheduler.connections._calls
        await until(lambda: scheduler.connections._calls[name].answered)
        for strange in ("", "unknown", name):
            second = peer.stub.ServeConnection()
            await second.write(pb.FromNode(call=strange))
            assert await second.read() is aio.EOF
        other = User(scheduler)
        waiting = asyncio.create_task(other.next())
        wanted = await next_wanted(peer)
        with pytest.raises(CallFailed) as failed:
            await anext(scheduler.connections.serve(single(pb.FromNode(call=wanted.call)), ["node:n2"]))
        assert failed.value.reason == FORBIDDEN
        waiting.cancel()


async def single(message: pb.FromNode) -> AsyncIterator[pb.FromNode]:
    """Yield one message."""
    yield message


@on_event_loop
async def test_a_node_that_does_not_answer() -> None:
    """After a while, the user is told."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        scheduler.connections = Connections(scheduler.links, answer_s=0.05)
        failure = await User(scheduler).failure()
        assert failure.reason == UNAVAILABLE
