"""The agent's side of terminals: to which sockets it connects, and how many shells it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.linked import on_event_loop
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


def test_only_so_many_shells_are_open_beside_a_job(tmp_path: Path) -> None:
    """The next request is refused."""
    (tmp_path / "d").mkdir()
    with RunDirectory(tmp_path / "d") as run:
        for number in range(SHELLS_MAX):
            (tmp_path / "d" / shell_socket(str(number))).touch()
        with pytest.raises(NoTerminal):
            want_shell(run, "17", {"name": "ab"})
