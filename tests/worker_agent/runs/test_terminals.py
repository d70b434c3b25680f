"""The agent's side of terminals: to which sockets it connects, and how many shells it asks for."""

from __future__ import annotations

import asyncio
import select
from pathlib import Path

import pytest

from tests.support.linked import on_event_loop, until
from worker_agent.runs.terminals import SHELLS_MAX, NoTerminal, connect, want_shell
from worker_agent.shim.run_directory import RunDirectory
from worker_agent.shim.terminal import listen
from worker_agent.shim.terminals import SOCKET, shell_socket


@on_event_loop
async def test_a_link_does_not_lead_to_the_terminal_of_another_job(tmp_path: Path) -> None:
    """The agent, which may be root, connects only to a socket that lies in the directory of the run itself."""
    listeners = []
    for name in ("own", "others"):
        (tmp_path / name).mkdir()
        with RunDirectory(tmp_path / name) as run:
            listeners.append(listen(run.fd, SOCKET))
    (await connect(tmp_path / "own", SOCKET, lambda: True)).close()
    (tmp_path / "own" / SOCKET).unlink()
    (tmp_path / "own" / SOCKET).symlink_to(tmp_path / "others" / SOCKET)
    with pytest.raises(NoTerminal):
        await connect(tmp_path / "own", SOCKET, lambda: True)
    for listener in listeners:
        listener.close()


@on_event_loop
async def test_a_closed_connection_does_not_wait_for_a_process_that_takes_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the terminal would count as attached, and its job would keep its GPUs."""
    monkeypatch.setattr("worker_agent.runs.terminals.FLUSH_S", 0.05)
    (tmp_path / "run").mkdir()
    with RunDirectory(tmp_path / "run") as run:
        listener = listen(run.fd, SOCKET)
    connection = await connect(tmp_path / "run", SOCKET, lambda: True)
    server, _ = listener.accept()
    writing = asyncio.create_task(connection.write(b"x" * (1 << 24)))
    await until(lambda: select.select([server], [], [], 0)[0])
    connection.close()
    await writing
    assert sum(map(len, iter(lambda: server.recv(1 << 16), b""))) < 1 << 24
    server.close()
    listener.close()


def test_only_so_many_shells_are_open_beside_a_job(tmp_path: Path) -> None:
    """The next request is refused."""
    (tmp_path / "d").mkdir()
    with RunDirectory(tmp_path / "d") as run:
        for number in range(SHELLS_MAX):
            (tmp_path / "d" / shell_socket(str(number))).touch()
        with pytest.raises(NoTerminal):
            want_shell(run, "17", {"name": "ab"})
