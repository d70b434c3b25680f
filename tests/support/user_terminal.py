"""A user at a terminal: a command that runs in a pty, which the test types into and reads.

with UserTerminal(["gavel", "run", "--", "bash"], env) as user:
    user.type("echo $((6 * 7))\\n")
    user.sees("42")
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

PATIENCE_S = 120.0
# Makes standard input the controlling terminal, as a login does. Our own process, which has threads, must not fork.
_LOG_IN = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)


class UserTerminal:
    """A terminal with a command in it. `output`: everything that it has shown."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], rows: int = 30, columns: int = 100
    ) -> None:
        self._master, self.slave = os.openpty()
        self.output = ""
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _LOG_IN, *command],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**env, "TERM": "xterm"},
        )

    def __enter__(self) -> UserTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self.slave)

    def type(self, text: str) -> None:
        """Type this text."""
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def sees(self, text: str) -> str:
        """Wait until this text is shown after everything that was waited for before; return what came before it."""
        end_s = time.monotonic() + PATIENCE_S
        while text not in self.output:
            has_ended = self.process.poll() is not None
            is_over = not self._read() and (has_ended or time.monotonic() > end_s)
            assert not is_over, f"{text!r} is not shown: {self.output!r}; exit status {self.process.poll()}"
        before, _, self.output = self.output.partition(text)
        return before

    def ends(self) -> int:
        """Wait for the end of the command, and return its exit status; the terminal must be as it was before."""
        end_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end_s, f"it does not end: {self.output!r}"
            self._read()
        while self._read():
            pass
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def _read(self) -> bool:
        """Read what is shown next, if anything is shown soon; return whether it was."""
        is_shown = bool(select.select([self._master], [], [], 0.05)[0])
        if is_shown:
            self.output += os.read(self._master, 1 << 16).decode(errors="replace")
        return is_shown
