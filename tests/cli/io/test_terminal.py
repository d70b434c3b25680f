"""Behaviour of real terminals and pipes: colour, keys, Ctrl-C, and a reader that closes the pipe."""

import codecs
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from fcntl import ioctl

import pytest

from protos.gavel.v1 import jobs_pb2
from tests.cli.conftest import Gavel
from tests.support.live_thread import LiveThread
from tests.support.notes import without_notes
from tests.support.wording import Wording

DEADLINE_S = 90.0


class Terminal:
    """`gavel …`, or another `program` of Python, on a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str, program: Sequence[str] = ("-m", "gavel"), **environ: str) -> None:
        self._main, side = pty.openpty()
        ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            env={**env, "TERM": "xterm-256color", **environ},
            start_new_session=True,
        )
        os.close(side)
        # The decoder is incremental, because a character may arrive in two parts.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._main, keys.encode())

    def read_until(self, words: str) -> str:
        """Read until these words appear, and return all output so far."""
        self._read(lambda: words in self.text)
        assert words in self.text, self.text
        return self.text

    def end(self) -> int:
        """Read the rest, wait for the process, and return its exit code."""
        self._read(lambda: False)
        os.close(self._main)
        return self.process.wait(DEADLINE_S)

    def _read(self, enough: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not enough() and time.monotonic() < until_s:
            ready, _, _ = select.select([self._main], [], [], 0.1)
            try:
                data = os.read(self._main, 65_536) if ready else b""
            except OSError:
                # The process has closed its side.
                return
            if ready and not data:
                return
            self.text += self._decoder.decode(data)


@pytest.fixture
def busy(live: LiveThread, gavel: Gavel) -> LiveThread:
    """A daemon on which one job runs and another waits for it."""
    gavel("submit", "-g", "2", "-n", "chat", "--", "true")
    live.do(live.daemon.run_job("1"))
    gavel("submit", "-n", "second", "--after", "1", "--", "true")
    return live


def test_top_until_q(busy: LiveThread) -> None:
    """`top` draws on the alternate screen again and again; q restores the terminal."""
    terminal = Terminal("top", "--every", "0.5")
    terminal.read_until("second")
    assert "2/2 GPUs busy" in terminal.text
    assert "\x1b[?1049h" in terminal.text
    terminal.press("q")
    assert terminal.end() == 0
    assert "\x1b[?1049l" in terminal.text


def test_colours_are_for_terminals(busy: LiveThread) -> None:
    """A terminal gets colours unless NO_COLOR is set; no line is wider than the terminal."""
    colourful, plain = Terminal("queue"), Terminal("queue", NO_COLOR="1")
    assert (colourful.end(), plain.end()) == (0, 0)
    assert "\x1b[32mrunning" in colourful.text
    assert "\x1b[32m" not in plain.text
    assert all(
        len(line) <= 80 for line in plain.text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    )


def test_output_of_jobs_does_not_control_the_terminal(busy: LiveThread) -> None:
    """A terminal gets the colours of a job's output but no other control sequence; a pipe gets every byte."""
    data = b"\x1b[31mred\x1b[2J\x1b]0;title\x07\n"
    busy.daemon.nodes.chunks = [jobs_pb2.LogChunk(job="1", attempt=1, data=data)]
    terminal = Terminal("logs", "1", "--rank", "0")
    assert terminal.end() == 0
    assert without_notes(terminal.text) == "\x1b[31mred\\x1b[2J\\x1b]0;title\\x07\r\n\x1b[0m"
    piped = subprocess.run(
        [sys.executable, "-m", "gavel", "logs", "1", "--rank", "0"], capture_output=True, check=True
    )
    assert piped.stdout == data


def test_ctrl_c_while_waiting(busy: LiveThread) -> None:
    """Ctrl-C ends the command with exit code 130 and one line; the job continues."""
    terminal = Terminal("wait", "1")
    terminal.read_until("job 1: running")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert busy.daemon.world.state.jobs["1"].state.value == "running"


def test_cancelling_all_asks_first(busy: LiveThread, wording: Wording) -> None:
    """The answer "n" cancels nothing, "y" cancels all."""
    terminal = Terminal("cancel", "--all")
    terminal.read_until("cancel jobs 2 and 1? [y/N]: ")
    terminal.press("n\n")
    assert terminal.end() == 2
    assert busy.daemon.world.state.jobs["1"].state.value == "running"
    wording(terminal.text.splitlines()[-1])
    terminal = Terminal("cancel", "--all")
    terminal.read_until("[y/N]: ")
    terminal.press("y\n")
    assert terminal.end() == 0
    assert busy.daemon.world.state.jobs["1"].state.value == "cancelled"


def test_a_reader_that_closes_the_pipe(busy: LiveThread) -> None:
    """`gavel queue | head -0` ends without a message."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "gavel", "queue", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert without_notes(result.stderr) == ""
