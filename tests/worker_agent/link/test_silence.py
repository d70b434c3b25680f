"""A link on which nothing arrives: either end closes it, unless its own process had been suspended."""

from __future__ import annotations

import asyncio
import time

from scheduler.model.cluster import NodeState
from tests.support.linked import QUICK, Scheduler, on_event_loop, until
from tests.worker_agent.link.test_stream import linked
from worker_agent.core.messages import Desired, LinkDown, LinkUp


@on_event_loop
async def test_a_partition_is_noticed_from_both_ends_and_healed():
    """A stream that hangs without an error is closed after the silence, and the next connection continues."""
    async with (
        Scheduler(pace=QUICK) as scheduler,
        Wall(scheduler.port) as wall,
        linked(wall.address) as (_, node),
    ):
        await until(lambda: node.of(Desired))
        wall.hold = True
        await until(lambda: node.of(LinkDown))
        await until(lambda: scheduler.state.nodes["n1"].state != NodeState.UP)
        wall.hold = False
        await until(lambda: scheduler.state.nodes["n1"].state == NodeState.UP)
        assert len(node.of(LinkUp)) >= 2


@on_event_loop
async def test_an_idle_link_stays_up():
    """For many times the silence, only signs of life are sent, and neither end closes the link."""
    async with Scheduler(pace=QUICK) as scheduler, linked(scheduler.address) as (_, node):
        await until(lambda: node.of(Desired))
        await asyncio.sleep(2.5 * QUICK.silence_s)
        assert not node.of(LinkDown)
        assert scheduler.state.nodes["n1"].state == NodeState.UP


@on_event_loop
async def test_an_agent_that_was_stopped_does_not_blame_the_scheduler():
    """When the agent's clock jumps ahead, the link stays, because messages that came meanwhile can be read."""
    shift_s = 0.0
    async with Scheduler(pace=QUICK) as scheduler:
        clock = lambda: time.monotonic() + shift_s  # noqa: E731
        async with linked(scheduler.address, clock=clock) as (_, node):
            await until(lambda: node.of(Desired))
            for _ in range(5):
                shift_s += 100.0
                await asyncio.sleep(0.3 * QUICK.silence_s)
            assert not node.of(LinkDown)


class Wall:
    """A proxy between both ends that forwards everything or nothing."""

    def __init__(self, port: int) -> None:
        self._port, self.hold = port, False
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wall:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, their_writer), (their_reader, writer)):
            task = asyncio.create_task(self._pour(source, sink))
            self._tasks.add(task)

    async def _pour(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                while self.hold:
                    await asyncio.sleep(0.02)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
