"""The server of one terminal: it passes input and output between a process and whoever is attached.

Standard library only: the shim forks it, as it forks the log pump. It holds the master of the pty (or the ends of two
pipes) and listens on a Unix socket in the run directory for the agent. Rules:
- one connection at a time: a new one replaces the old one, which may be a connection that was cut off unnoticed;
- positions in output and input count from the start of the process, so a session that connects again loses nothing and
  receives nothing twice, as long as it is not more than KEPT_BYTES behind;
- an attached client that does not read stops the process's output, as a real terminal would; without one, the process
  runs on, and the oldest output is dropped;
- after the exit code, the server waits for the client to leave: a connection that closes while the client still sends
  input would take the exit code away from a client that has not read it yet;
- without a connection for `keep_s`, the server exits, and the shim sends SIGHUP to the process;
- only the agent's user may connect, whatever the job does to the files in its directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import termios
import time
from typing import Any, NamedTuple

from worker_agent.shim import frames

# How much of the latest output is kept for clients that connect.
KEPT_BYTES = 1 << 20
# How long the server waits, after the process's end, for a client to attach, and for it to receive the rest.
LINGER_S, DELIVER_S = 3.0, 4.0
_CHUNK_BYTES = 1 << 15
# While more input than this waits for the process, no more is read.
_INPUT_BYTES_MAX = 1 << 16
_CREDENTIALS = struct.Struct("3i")


class Ends(NamedTuple):
    """The server's ends of a terminal, and what it needs from the shim."""

    # Where the process's input is written and its output read. For a pty, both are its master.
    input: int
    output: int
    tty: bool
    # The pipe from which the exit code is read, as text.
    code: int
    # The pipe to the log; None: the output is not logged.
    log: int | None
    keep_s: float


def listen(directory: int, name: str) -> socket.socket:
    """Return a socket that listens under this name in a run directory. Raises OSError if that is not possible.

    The path leads through the descriptor, because paths of sockets may have only 108 bytes, and because the job may
    have moved its directory.
    """
    path = f"/proc/self/fd/{directory}/{name}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    listener.listen(4)
    listener.setblocking(False)
    return listener


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process at the other end of a Unix socket."""
    size = _CREDENTIALS.size
    return int(_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def set_size(tty: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; its processes get SIGWINCH if that is a change."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


class _Client:
    """The connection of an attached client."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.frames = frames.Frames()
        # Frames that wait to be written.
        self.out = bytearray()
        # The positions up to which output was put into `out`, and the arrival of input was; None before the client has
        # opened its session.
        self.position: int | None = None
        self.input_bytes = 0
        # Whether the exit code was put into `out`.
        self.has_exit = False


class Server:
    """A terminal and its clients, from the start of the process to its end."""

    def __init__(self, listener: socket.socket, ends: Ends) -> None:
        self._listener, self._ends = listener, ends
        self._client: _Client | None = None
        self._session, self._input_bytes = "", 0
        # Input that waits for the process. `_input_ends`: nothing follows.
        self._input, self._input_ends = bytearray(), False
        # The latest output, and the position of its end.
        self._kept, self._end = bytearray(), 0
        self._output_open = True
        self._code, self._code_open = 0, True
        # Whether a client has left after the exit code was sent to it.
        self._has_delivered = False
        # Since when there is no client, or the process has ended.
        self._since_s = time.monotonic()
        os.set_blocking(ends.input, False)
        os.set_blocking(ends.output, False)

    def run(self) -> bool:
        """Serve until the process has ended, or has had no client for too long; return whether it has ended."""
        while True:
            client, is_over = self._client, self._is_over
            if self._has_delivered:
                return True
            limit_s = self._ends.keep_s if not is_over else LINGER_S if client is None else DELIVER_S
            wait_s = self._since_s + limit_s - time.monotonic()
            if client is not None and not is_over:
                self._wait(None)
            elif wait_s > 0:
                self._wait(wait_s)
            else:
                return is_over

    @property
    def _is_over(self) -> bool:
        """Whether the process has exited and nobody can print any more."""
        return not (self._output_open or self._code_open)

    def _wait(self, wait_s: float | None) -> None:
        """Wait until something can be read or written, and do that."""
        client, ends = self._client, self._ends
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._code_open:
            poll.register(ends.code, select.POLLIN)
        events = {}
        if self._output_open and not self._is_client_behind():
            events[ends.output] = select.POLLIN
        if self._input:
            events[ends.input] = events.get(ends.input, 0) | select.POLLOUT
        if client is not None:
            reads = select.POLLIN if len(self._input) < _INPUT_BYTES_MAX else 0
            events[client.connection.fileno()] = reads | (select.POLLOUT if client.out else 0)
        for fd, mask in events.items():
            poll.register(fd, mask)
        ready = dict(poll.poll(None if wait_s is None else wait_s * 1000 + 1))
        if ends.output in ready and self._output_open:
            self._read_output()
        if self._input and ready.get(ends.input, 0) & ~select.POLLIN:
            self._write_input()
        if self._code_open and ends.code in ready:
            self._read_code()
        if client is not None and (mask := ready.get(client.connection.fileno(), 0)):
            self._serve(client, mask)
        if self._listener.fileno() in ready:
            self._accept()
        self._fill()

    def _is_client_behind(self) -> bool:
        client = self._client
        return (
            client is not None
            and client.position is not None
            and self._end - client.position >= KEPT_BYTES - _CHUNK_BYTES
        )

    # ------------------------------------------------------------------------------------------------ the process

    def _read_output(self) -> None:
        try:
            data = os.read(self._ends.output, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # A pty whose last process has closed it.
            data = b""
        if not data:
            self._output_open = False
            self._since_s = time.monotonic()
            self._close_log()
            return
        self._end += len(data)
        self._kept += data
        # The oldest output is dropped rarely, because each time the rest is moved.
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]
        self._log(data)

    def _log(self, data: bytes) -> None:
        # As for other jobs, a slow disk slows down what the process prints.
        if self._ends.log is not None:
            with contextlib.suppress(BrokenPipeError):
                while data:
                    data = data[os.write(self._ends.log, data) :]

    def _close_log(self) -> None:
        if self._ends.log is not None:
            os.close(self._ends.log)
            self._ends = self._ends._replace(log=None)

    def _write_input(self) -> None:
        try:
            written = os.write(self._ends.input, self._input[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:
            # The process reads no more; its input is lost, as with any program.
            written = len(self._input)
        del self._input[:written]
        self._input_bytes += written
        self._end_input()

    def _end_input(self) -> None:
        """Close the process's input at its end. The input of a pty ends with a character, which the user types."""
        if self._input_ends and not self._input and not self._ends.tty and self._ends.input >= 0:
            os.close(self._ends.input)
            self._ends = self._ends._replace(input=-1)

    def _read_code(self) -> None:
        text = os.read(self._ends.code, 32)
        self._code_open = False
        self._since_s = time.monotonic()
        if text:
            self._code = int(text)

    # ------------------------------------------------------------------------------------------------- the client

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if peer_uid(connection) != os.geteuid():
            connection.close()
            return
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.connection.send(frames.pack(frames.REPLACED))
        self._drop_client()
        self._client = _Client(connection)

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.connection.close()
            self._client = None
            self._since_s = time.monotonic()

    def _serve(self, client: _Client, mask: int) -> None:
        """Read from a client and write to it; drop it when it has gone."""
        try:
            if mask & select.POLLOUT:
                del client.out[: client.connection.send(client.out)]
            if mask & ~select.POLLOUT:
                data = client.connection.recv(_CHUNK_BYTES)
                if not data:
                    self._has_delivered = client.has_exit and not client.out
                    self._drop_client()
                    return
                for kind, content in client.frames.feed(data):
                    self._on_frame(client, kind, content)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            self._drop_client()

    def _on_frame(self, client: _Client, kind: bytes, content: bytes) -> None:
        if client.position is None:
            if kind != frames.OPEN:
                raise ValueError("the first frame must open a session")
            self._on_open(client, json.loads(content))
        elif kind == frames.DATA and not self._input_ends:
            if self._ends.input >= 0:
                self._input += content
        elif kind == frames.SIZE and self._ends.tty:
            set_size(self._ends.output, *frames.size_of(content))
        elif kind == frames.END and not self._ends.tty:
            self._input_ends = True
            self._end_input()

    def _on_open(self, client: _Client, request: dict[str, Any]) -> None:
        session = str(request["session"])
        if session != self._session:
            self._session, self._input_bytes = session, 0
        # The session sends again what the process has not received from its earlier connection.
        self._input.clear()
        self._input_ends = self._ends.input < 0
        begin = self._end - min(len(self._kept), KEPT_BYTES)
        client.position = min(max(int(request["offset"]), begin), self._end)
        client.input_bytes = self._input_bytes
        opened = {
            "offset": client.position,
            "input_bytes": self._input_bytes,
            "keep_s": self._ends.keep_s,
            "tty": self._ends.tty,
        }
        client.out += frames.pack(frames.OPEN, json.dumps(opened).encode())

    def _fill(self) -> None:
        """Send output to the client for as long as it takes it, and after the last of it the exit code."""
        client = self._client
        try:
            while client is not None and client.position is not None:
                data = self._output_from(client.position)
                if client.input_bytes < self._input_bytes and not client.out:
                    client.out += frames.pack_input_bytes(self._input_bytes)
                    client.input_bytes = self._input_bytes
                if data and len(client.out) < 2 * _CHUNK_BYTES:
                    client.out += frames.pack(frames.DATA, data)
                    client.position += len(data)
                elif not data and self._is_over and not client.has_exit:
                    client.out += frames.pack_exit(self._code)
                    client.has_exit = True
                if not client.out:
                    return
                del client.out[: client.connection.send(client.out)]
        except BlockingIOError:
            # The rest is sent when the client has read some of it.
            return
        except OSError:
            self._drop_client()

    def _output_from(self, position: int) -> bytes:
        """Return output from this position, at most as much as one frame takes."""
        start = len(self._kept) - (self._end - position)
        return bytes(self._kept[start : start + _CHUNK_BYTES])
