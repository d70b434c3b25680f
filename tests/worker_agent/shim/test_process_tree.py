"""Processes are found and killed, and a process counts as gone only when it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from worker_agent.shim import process_tree
from worker_agent.shim.process_tree import Process


def test_a_dying_process_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has no environment by which to find it, but exists until the kernel has closed its files."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = process_tree.look_up(child.pid)
        assert process is not None
        looks = [[process], []]
        with monkeypatch.context() as slow:
            # The signal takes its time.
            slow.setattr(process_tree, "send", lambda process, signum: True)
            assert process_tree.kill_all(lambda: looks.pop(0) if looks else []) == [process]
        assert (
            process_tree.kill_all(lambda: [process] if process_tree.alive(process) else [], child.wait) == []
        )
    assert not process_tree.alive(process)


def test_no_process_is_killed_for_another() -> None:
    """A later process with the same pid is not killed."""
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        process = process_tree.look_up(child.pid)
        assert process is not None
        process_tree.kill_all(lambda: [Process(process.pid, process.start_ticks - 1)])
    # The process ended by itself when its input was closed.
    assert child.returncode == 0
