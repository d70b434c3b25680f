"""Connections to ports of a node: data in both directions, and the ends of either side and of the job."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.linked import on_event_loop
from worker_agent.runs.ports import connect_to_port
from worker_agent.runs.terminals import NoTerminal
from worker_agent.shim import frames


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer everything in capitals, after the end of the input."""
    writer.write((await reader.read()).upper())
    writer.close()


@on_event_loop
async def test_data_passes_until_the_program_closes_the_connection() -> None:
    """The end of the input reaches the program; what arrived is confirmed; the end of the answer is an exit code."""
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    connection = await connect_to_port(server.sockets[0].getsockname()[1], lambda: True)
    await connection.open("ab", 0)
    await connection.write(b"hello")
    await connection.end_input()
    arrived = [(kind, content) async for kind, content in connection.frames()]
    assert [kind for kind, _ in arrived if kind != frames.RECEIVED] == [frames.OPEN, frames.DATA, frames.EXIT]
    assert [frames.input_bytes_of(content) for kind, content in arrived if kind == frames.RECEIVED] == [5]
    assert (frames.DATA, b"HELLO") in arrived
    connection.close()
    server.close()


@on_event_loop
async def test_a_user_who_only_sends_takes_no_memory() -> None:
    """What arrives is counted, and the newest count is sent when the user reads."""
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    connection = await connect_to_port(server.sockets[0].getsockname()[1], lambda: True)
    for _ in range(1000):
        await connection.write(b"x")
    await connection.end_input()
    counts = [
        frames.input_bytes_of(data) async for kind, data in connection.frames() if kind == frames.RECEIVED
    ]
    assert counts == [1000]
    connection.close()
    server.close()


@on_event_loop
async def test_a_connection_ends_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes on listening, such as one of another job, is not reached any more."""
    monkeypatch.setattr("worker_agent.runs.ports.LOOK_INTERVAL_S", 0.01)
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    lives = [True]
    connection = await connect_to_port(server.sockets[0].getsockname()[1], lambda: lives[0])
    await connection.open("ab", 0)
    kinds = []
    async for kind, _ in connection.frames():
        kinds.append(kind)
        lives[0] = False
    assert kinds == [frames.OPEN, frames.EXIT]
    connection.close()
    server.close()


@on_event_loop
async def test_what_cannot_be_reached() -> None:
    """A port at which nothing listens, and any port if the job is not here."""
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NoTerminal):
        await connect_to_port(port, lambda: False)
    server.close()
    await server.wait_closed()
    with pytest.raises(NoTerminal):
        await connect_to_port(port, lambda: True)
