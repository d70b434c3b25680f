"""The terminal of an interactive job: a real shim and its server, and a client that speaks to the server's socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_agent.shim_runs import PATIENCE_S, ShimRun, gone, python, shim_run, wait_for
from worker_agent.runs.terminals import want_shell
from worker_agent.shim import frames
from worker_agent.shim.run_directory import RunDirectory
from worker_agent.shim.terminal import KEPT_BYTES, listen, peer_uid
from worker_agent.shim.terminals import SOCKET, shell_socket

TTY = {"tty": True, "rows": 30, "columns": 90, "keep_s": PATIENCE_S}
PIPES = {"tty": False, "keep_s": PATIENCE_S}
# Prints what it reads, and "end" at the end of its input.
ECHO = "import os\nwhile data := os.read(0, 100000): os.write(1, data)\nos.write(1, b'end')"


class Attached:
    """A client at a terminal, as the agent attaches one."""

    def __init__(self, run: ShimRun, offset: int = 0, session: str = "a", name: str = SOCKET) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        # The server binds its socket before it listens.
        wait_for(
            lambda: run.run.has(name) and self.socket.connect_ex(f"/proc/self/fd/{run.run.fd}/{name}") == 0
        )
        self._frames, self._arrived = frames.Frames(), list[tuple[bytes, bytes]]()
        self.output, self.input_bytes = b"", 0
        self.send(frames.OPEN, json.dumps({"session": session, "offset": offset}).encode())
        self.opened: dict[str, Any] = json.loads(self.next(frames.OPEN))

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a frame."""
        self.socket.sendall(frames.pack(kind, content))

    def type(self, text: str) -> None:
        """Send input."""
        self.send(frames.DATA, text.encode())

    def next(self, wanted: bytes) -> bytes:
        """Return the content of the next frame of this kind; empty at the end of the connection."""
        while True:
            while self._arrived:
                kind, content = self._arrived.pop(0)
                if kind == frames.DATA:
                    self.output += content
                if kind == frames.RECEIVED:
                    self.input_bytes = frames.input_bytes_of(content)
                if kind == wanted:
                    return content
            data = self.socket.recv(1 << 16)
            if not data:
                return b""
            self._arrived += self._frames.feed(data)

    def until(self, text: str) -> bytes:
        """Wait for this text in the output; return the whole output."""
        while text.encode() not in self.output:
            assert self.next(frames.DATA), self.output
        return self.output

    def exit_code(self) -> int:
        """Wait for the end of the process, leave, and return its exit code."""
        code = frames.exit_of(self.next(frames.EXIT))
        self.close()
        return code

    def close(self) -> None:
        """Leave, as a cut connection does."""
        self.socket.close()


@contextlib.contextmanager
def terminal(tmp_path: Path, argv: list[str], wanted: dict[str, Any], **start: Any) -> Iterator[ShimRun]:
    """An interactive run."""
    with shim_run(tmp_path / "runs", argv, terminal=wanted, **start) as run:
        yield run
        assert "Traceback" not in run.troubles()


def test_the_program_has_a_terminal_of_the_given_size(tmp_path: Path) -> None:
    """Its streams are a terminal, which its session controls; what it prints also goes to its log."""
    code = (
        "import os; print(os.isatty(0), *os.get_terminal_size(), os.ttyname(0) == os.ttyname(2))\n"
        "print(os.open('/dev/tty', 2))"
    )
    with terminal(tmp_path, python(code), TTY) as run:
        client = Attached(run)
        assert client.exit_code() == 0
        assert client.output.split() == b"True 90 30 True 3".split()
        assert run.ended()["codes"] == {"0": 0}
        assert run.log().split() == client.output.decode().split()


# Prints its size at each change of it, its input line by line, and a word at Ctrl-C; exits with the code in a line.
TALKATIVE = """
import os, signal, sys
def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())
signal.signal(signal.SIGWINCH, lambda *_: say('size', *os.get_terminal_size()))
signal.signal(signal.SIGINT, lambda *_: say('interrupted'))
say('ready')
for line in sys.stdin:
    say('line', line.strip())
    if line.startswith('exit'): sys.exit(int(line.split()[1]))
"""


def test_what_is_typed_reaches_the_program_with_its_signals(tmp_path: Path) -> None:
    """Input is echoed, a new size is seen at once, and Ctrl-C interrupts; the exit code is that of the program."""
    with terminal(tmp_path, python(TALKATIVE), TTY) as run:
        client = Attached(run)
        client.until("ready")
        client.type("hello\n")
        client.until("hello\r\nline hello")
        client.socket.sendall(frames.pack_size(50, 120))
        client.until("size 120 50")
        client.type("\x03")
        client.until("interrupted")
        client.type("exit 7\n")
        assert client.exit_code() == 7
        assert run.ended()["codes"] == {"0": 7}


def test_a_client_that_comes_back_misses_nothing_and_receives_nothing_twice(tmp_path: Path) -> None:
    """A cut connection continues: output from the client's position, and input from where the process has it."""
    with terminal(tmp_path, python(ECHO), PIPES) as run:
        first = Attached(run)
        first.type("one ")
        first.until("one ")
        first.close()
        second = Attached(run, offset=2)
        assert (second.opened["offset"], second.opened["input_bytes"]) == (2, 4)
        second.type("two")
        second.send(frames.END)
        assert second.exit_code() == 0
        assert second.output == b"e twoend"


def test_another_session_starts_its_input_anew_and_replaces_the_first(tmp_path: Path) -> None:
    """There is one client at a time, and the one that is replaced learns it."""
    with terminal(tmp_path, python(ECHO), PIPES) as run:
        first = Attached(run)
        first.type("one ")
        first.until("one ")
        second = Attached(run, session="b")
        assert first.next(frames.REPLACED) == b"" == first.next(frames.DATA)
        assert second.opened["input_bytes"] == 0
        assert second.until("one ") == b"one "


def test_without_a_client_the_program_runs_on_and_its_oldest_output_is_dropped(tmp_path: Path) -> None:
    """The last KEPT_BYTES are there for the next client, which learns where they begin."""
    code = f"import os, sys; sys.stdout.write('x' * {KEPT_BYTES} * 4 + 'last'); sys.stdout.flush(); os.read(0, 1)"
    with terminal(tmp_path, python(code), PIPES, log_bytes_max=1 << 30) as run:
        wait_for(lambda: run.log().endswith("last"))
        client = Attached(run)
        client.until("last")
        assert client.opened["offset"] == 3 * KEPT_BYTES + 4
        assert client.output == b"x" * (KEPT_BYTES - 4) + b"last"


def test_a_client_that_does_not_read_stops_the_output(tmp_path: Path) -> None:
    """The program waits for its terminal, and nothing is lost once the client reads."""
    size = 6 * KEPT_BYTES
    code = f"import sys\nfor _ in range({size} // 1024): sys.stdout.write('x' * 1024)\nprint('last')"
    with terminal(tmp_path, python(code), PIPES, log_bytes_max=1 << 30) as run:
        client = Attached(run)
        wait_for(lambda: len(run.log()) > KEPT_BYTES - (1 << 16))
        assert not run.run.has("exit.json")
        client.until("last")
        assert len(client.output) == size + 5
        assert client.exit_code() == 0


def test_a_program_without_a_client_is_hung_up(tmp_path: Path) -> None:
    """After the time without a client it gets SIGHUP, and a line of its log says why."""
    for lease, wanted in (("1", TTY), ("2", PIPES)):
        wanted = wanted | {"keep_s": 0.1}
        with terminal(tmp_path, python("import time; time.sleep(600)"), wanted, lease=lease) as run:
            assert run.ended()["codes"] == {"0": -signal.SIGHUP}
            assert "SIGHUP" in run.says("gavel: ")


def test_the_end_of_a_lease_ends_a_shell_at_once(tmp_path: Path) -> None:
    """Interactive shells ignore SIGTERM, so the process in a terminal also gets SIGHUP."""
    with terminal(tmp_path, ["/bin/bash", "--norc", "--noprofile"], TTY) as run:
        client = Attached(run)
        client.type("echo $((6 * 7))\n")
        client.until("42")
        run.lease(0, 0, PATIENCE_S)
        assert client.exit_code() == -signal.SIGHUP
        assert run.ended() | {"signalled": True, "codes": {"0": -signal.SIGHUP}} == run.run.read("exit.json")


def test_the_server_waits_for_a_client_that_still_types(tmp_path: Path) -> None:
    """After the exit code, the connection stays open until the client leaves, so input in flight destroys nothing."""
    with terminal(tmp_path, python("import sys; sys.exit(len(sys.stdin.read(1)))"), PIPES) as run:
        client = Attached(run)
        client.type("x")
        assert frames.exit_of(client.next(frames.EXIT)) == 1
        client.type("y")
        client.send(frames.END)
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.next(frames.EXIT)
        client.close()
        assert run.ended()["codes"] == {"0": 1}


def test_the_server_ends_with_its_shim(tmp_path: Path) -> None:
    """After kill -9 of the shim, neither program nor server remains, and the lock of the run is free."""
    with terminal(tmp_path, python("import time; time.sleep(600)"), TTY) as run:
        leader = run.running()["pids"][0]
        assert run.shim is not None
        run.shim.kill()
        run.shim.wait()
        wait_for(lambda: gone(leader) and (lock := run.run.lock()) is not None and not os.close(lock))


def test_broken_frames_end_a_connection_and_not_the_terminal(tmp_path: Path) -> None:
    """A client that sends nonsense is dropped; the next one is served."""
    with terminal(tmp_path, python(ECHO), PIPES) as run:
        for nonsense in (b"\xff" * 100, frames.pack(frames.DATA, b"x"), frames.pack(frames.OPEN, b"[]")):
            client = Attached(run, session="c")
            client.close()
            wait_for(lambda: run.run.has(SOCKET))
            raw = socket.socket(socket.AF_UNIX)
            raw.settimeout(PATIENCE_S)
            raw.connect(f"/proc/self/fd/{run.run.fd}/{SOCKET}")
            raw.sendall(nonsense)
            assert raw.recv(100) == b""
            raw.close()
        client = Attached(run, session="d")
        client.type("still here")
        client.until("still here")


def test_only_its_owner_can_connect(tmp_path: Path) -> None:
    """The socket has mode 0600, a file that was in its place is removed, and each side sees the user of the other."""
    (tmp_path / "d").mkdir()
    run = RunDirectory(tmp_path / "d")
    (tmp_path / "d" / SOCKET).write_text("in the way")
    listener = listen(run.fd, SOCKET)
    assert os.stat(tmp_path / "d" / SOCKET).st_mode & 0o777 == 0o600
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"/proc/self/fd/{run.fd}/{SOCKET}")
    served, _ = listener.accept()
    assert peer_uid(client) == peer_uid(served) == os.geteuid()
    for each in (client, served, listener):
        each.close()
    (tmp_path / "d" / SOCKET).unlink()
    (tmp_path / "d" / SOCKET).mkdir()
    with pytest.raises(OSError):
        listen(run.fd, SOCKET)
    run.close()


def test_a_shell_beside_a_job(tmp_path: Path) -> None:
    """It has the job's environment and directory, and its exit leaves the job alone; its name is used only once."""
    ends = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with shim_run(tmp_path / "runs", python(ends), login_shell=["/bin/sh"]) as run:
        run.running()
        want_shell(run.run, "17", {"name": "ab", "tty": True, "rows": 40, "columns": 90, "term": "vt100"})
        want_shell(run.run, "17", {"name": "ab", "tty": True})
        client = Attached(run, name=shell_socket("ab"))
        client.type("stty size; echo $TERM $GAVEL_RUN_DIR; pwd; exit 5\n")
        assert client.exit_code() == 5
        assert not run.run.has("exit.json")
        (run.path / "go").touch()
        assert b"40 90" in client.output
        assert f"vt100 {run.path}\r\n{run.path}".encode() in client.output
        assert run.ended()["codes"] == {"0": 0}
        assert "vt100" not in run.log()
        assert not run.run.has(shell_socket("ab"))


def test_shells_end_with_the_job(tmp_path: Path) -> None:
    """When the job's last rank has ended, nothing of a shell is left, not even what it put into the background."""
    ends = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with shim_run(tmp_path / "runs", python(ends), login_shell=["/bin/sh"]) as run:
        run.running()
        want_shell(run.run, "17", {"name": "ab", "tty": True})
        client = Attached(run, name=shell_socket("ab"))
        client.type("sleep 1000 & echo pi''d $! end\n")
        client.until("pid ")
        client.until(" end\r\n")
        pid = int(client.output.decode().rpartition("pid ")[2].split()[0])
        client.close()
        (run.path / "go").touch()
        assert run.ended()["codes"] == {"0": 0}
        assert gone(pid)


def test_a_shell_that_cannot_start_says_why_in_its_terminal(tmp_path: Path) -> None:
    """The job goes on, and so does its shim."""
    ends = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with shim_run(tmp_path / "runs", python(ends), login_shell=["/no/such/shell"]) as run:
        run.running()
        want_shell(run.run, "17", {"name": "ab", "tty": False})
        client = Attached(run, name=shell_socket("ab"))
        assert client.exit_code() == 127
        assert b"/no/such/shell" in client.output
        (run.path / "go").touch()
        assert run.ended()["codes"] == {"0": 0}
