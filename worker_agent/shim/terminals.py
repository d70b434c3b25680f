"""The terminals of a run, as its shim sees them: that of an interactive job, and those of shells beside the job.

Standard library only. Each terminal has a server process (terminal.py). The shim opens a terminal, starts the process
in it, and passes its exit code on; when a server has gone, the process gets SIGHUP.
The agent asks for a shell by an entry in shells.json, which is trusted only from the agent's user. An entry that was
carried out is not repeated, so a job that puts an old file back gains nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from worker_agent.shim import process_tree
from worker_agent.shim.child import CannotStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker_agent.shim.run_directory import RunDirectory

# The socket of the job's own terminal, and the file with the shells that users want beside it.
SOCKET, SHELLS = "terminal.sock", "shells.json"
ROWS, COLUMNS = 24, 80
# How long a process continues without a client if nothing else was configured.
KEEP_S = 600.0


def shell_socket(name: str) -> str:
    """Return the name of the socket of a shell."""
    return f"shell-{name}.sock"


class Terminal:
    """A terminal, whose server runs already, and later the process in it."""

    def __init__(
        self, run: RunDirectory, name: str, wanted: Mapping[str, Any], log: int | None, uid: int
    ) -> None:
        """Open a terminal and start its server. Raises OSError.

        `wanted`: `tty`, `rows`, `columns` and `keep_s`. `log`: where the output is written, too. `uid`: the user who
        may use the terminal; -1: ours.
        """
        # Only terminals need these modules, whose import would delay the start of every job.
        from worker_agent.shim.terminal import Ends, listen, set_size

        self.name, self.tty = name, bool(wanted.get("tty"))
        listener = listen(run.fd, name)
        try:
            if self.tty:
                master, slave = os.openpty()
                set_size(master, wanted.get("rows") or ROWS, wanted.get("columns") or COLUMNS)
                os.fchown(slave, uid, -1)
                server_ends, self.input, self.output = (master, master), slave, slave
            else:
                self.input, to_process = os.pipe()
                from_process, self.output = os.pipe()
                server_ends = (to_process, from_process)
            code, self._code = os.pipe()
            keep_s = wanted.get("keep_s")
            ends = Ends(*server_ends, self.tty, code, log, KEEP_S if keep_s is None else float(keep_s))
            self.server = _fork_server(listener, ends)
            for fd in {*server_ends, code}:
                os.close(fd)
        finally:
            listener.close()
        # The pid of the process; 0 before its start, and after its end.
        self.process = 0

    @property
    def streams(self) -> dict[str, Any]:
        """The arguments of `turn_into` for a process in the terminal."""
        return {"stdin": self.input, "out": self.output, "tty": self.tty}

    def started(self, pid: int) -> None:
        """Record the process in the terminal, which holds the only other descriptors of its ends."""
        self.process = pid
        for fd in {self.input, self.output}:
            os.close(fd)

    def hang_up(self) -> None:
        """Send SIGHUP to the process, if it lives."""
        if self.process:
            # It is not reaped yet, so no other process can have the pid.
            os.kill(self.process, signal.SIGHUP)

    def ended(self, code: int) -> None:
        """Pass on the exit code of the process."""
        self.process = 0
        # The server may be gone.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._code, str(code).encode())
        os.close(self._code)


def _fork_server(listener: Any, ends: Any) -> int:
    """Start the server of a terminal; return its pid. Its exit status is 0 if the process in the terminal has ended."""
    from worker_agent.shim.terminal import Server

    shim, pid = os.getpid(), os.fork()
    if pid:
        return pid
    status = 1
    try:
        process_tree.die_with_parent(shim)
        # Above all the lock, which must not outlive the shim, and the write end of the pipe of the code.
        kept = {0, 1, 2, listener.fileno(), ends.input, ends.output, ends.code, ends.log}
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        status = 0 if Server(listener, ends).run() else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


class Terminals:
    """All terminals of a run."""

    def __init__(self, run: RunDirectory, start: Mapping[str, Any], note: Callable[[str], object]) -> None:
        """`note` writes a line into the log."""
        self._run, self._uid, self._note = run, start.get("uid"), note
        self._own: Mapping[str, Any] | None = start.get("terminal")
        self._shell: list[str] = start.get("login_shell") or []
        # The environment of shells; None before the ranks start.
        self.shell_env: dict[str, str] | None = None
        # The version of shells.json that was read last, and the names of all shells so far.
        self._shells_version: object = None
        self._shell_names: set[str] = set()
        self._all: list[Terminal] = []

    def open_own(self, log: int) -> Terminal | None:
        """Open the job's own terminal; None if it is not interactive. Raises CannotStart. `log`: as in `Terminal`."""
        if not self._own:
            return None
        try:
            return self._open(SOCKET, self._own, log)
        except OSError as error:
            raise CannotStart(f"its terminal cannot be opened: {error.strerror}") from error

    def _open(self, name: str, wanted: Mapping[str, Any], log: int | None) -> Terminal:
        self._all.append(Terminal(self._run, name, wanted, log, -1 if self._uid is None else self._uid))
        return self._all[-1]

    def open_shells(self, turn_into: Callable[..., NoReturn]) -> None:
        """Open the shells that users want beside the job. `turn_into`: the function of child.py for this run."""
        version = self._run.version(SHELLS)
        if version == self._shells_version or self.shell_env is None:
            return
        self._shells_version = version
        content = self._run.read(SHELLS, owner=os.geteuid()) or {}
        for wanted in content.get("shells", ()):
            name = str(wanted["name"])
            if name in self._shell_names:
                continue
            self._shell_names.add(name)
            term = wanted.get("term") or self.shell_env.get("TERM", "dumb")
            try:
                terminal = self._open(shell_socket(name), wanted, log=None)
            except OSError as error:
                # The job itself goes on.
                self._note(f"a shell cannot be opened: {error.strerror}")
                continue
            pid = os.fork()
            if not pid:
                # Unlike ranks, which are waited for, a shell that cannot start says why in its terminal.
                turn_into(
                    self._shell,
                    self.shell_env | {"TERM": term},
                    trouble_in=terminal.output,
                    **terminal.streams,
                )
            terminal.started(pid)

    @property
    def servers(self) -> set[int]:
        """The pids of the servers that run."""
        return {terminal.server for terminal in self._all if terminal.server}

    def on_exit(self, pid: int, code: int) -> None:
        """Handle the exit of a child of the shim."""
        for terminal in self._all:
            if terminal.process == pid:
                terminal.ended(code)
            elif terminal.server == pid:
                terminal.server = 0
                with contextlib.suppress(OSError):
                    os.unlink(terminal.name, dir_fd=self._run.fd)
                if terminal.process:
                    owner = "the job" if terminal.name == SOCKET else "a shell"
                    self._note(f"no terminal was attached to {owner} for too long: SIGHUP")
                    terminal.hang_up()

    def hang_up(self) -> None:
        """Send SIGHUP to the processes in terminals: interactive shells ignore SIGTERM."""
        for terminal in self._all:
            terminal.hang_up()
