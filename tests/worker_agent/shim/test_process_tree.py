"""Processes are found and killed, and nobody is called gone who is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from worker_agent.shim import process_tree
from worker_agent.shim.process_tree import Process


def test_who_is_dying_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, it is found no more by its environment, but lives until the kernel has closed its files."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = process_tree.look_up(child.pid)
        assert process is not None
        found = [[process], []]
        with monkeypatch.context() as slow:
            slow.setattr(process_tree, "send", lambda process, signum: True)  # it takes its time
            assert process_tree.kill_all(lambda: found.pop(0) if found else []) == [process]
        assert (
            process_tree.kill_all(lambda: [process] if process_tree.alive(process) else [], child.wait) == []
        )
    assert not process_tree.alive(process)


def test_nobody_is_killed_for_another() -> None:
    """A later process with the same pid is not the one that was meant."""
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        process = process_tree.look_up(child.pid)
        assert process is not None
        process_tree.kill_all(lambda: [Process(process.pid, process.start_ticks - 1)])
    assert child.returncode == 0  # it went by itself, when nobody wrote to it any more
