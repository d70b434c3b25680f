"""A session at a terminal of a job, which survives lost connections without losing or repeating a byte.

Positions in both directions count from the start: of the process's output, and of the session's input. After a lost
connection, the session asks for the output that it misses, and learns how much of its input has arrived.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gavel.client import calls
from gavel.client.calls import Call
from gavel.client.client import PATIENCE_S, Client
from protos.gavel.v1 import jobs_pb2 as pb

# How much input one message has, and how much waits for the process before `send` blocks.
_CHUNK_BYTES, _INPUT_BYTES_MAX = 1 << 15, 1 << 20
_NEW_PROCESS = "the job was started again"


class TerminalSession:
    """One user's session at a terminal of a job. `output` runs in one thread; all other methods may run in others."""

    def __init__(
        self,
        client: Client,
        job: str,
        *,
        size: tuple[int, int] | None = None,
        patience_s: float = PATIENCE_S,
        **details: Any,
    ) -> None:
        """`size`: rows and columns of the user's terminal, if there is one. `patience_s`: how long to reconnect.

        `details`: fields of OpenConnection: the attempt, without which a session could continue in the next one; those
        for a new shell beside the job, or for a port, instead of its terminal.
        """
        self._wire, self._patience_s = client._wire, patience_s
        self._opening = pb.OpenConnection(job=job, session=secrets.token_hex(16), **details)
        # Guards everything below; notified when there may be something to send.
        self._changed = threading.Condition()
        # Input that the process has not confirmed, and the position of its first byte.
        self._input, self._confirmed = bytearray(), 0
        self._input_ended = False
        # The position up to which input was sent on this connection; None before the connection is open.
        self._sent: int | None = None
        self._end_sent = False
        self._size, self._size_changed = size, False
        # Which connection this is. Requests of earlier ones end.
        self._connection = 0
        self._left = False
        # The position up to which output was received.
        self._position = 0
        # What the terminal said when it was opened; None before.
        self.opened: pb.ConnectionOpened | None = None
        # Called once, when the terminal is open.
        self.on_opened: Callable[[], object] = lambda: None
        # The exit code of the process, after its end: minus the signal's number if a signal ended it.
        self.exit_code: int | None = None

    def send(self, data: bytes) -> None:
        """Send input. Blocks while too much earlier input waits for the process."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._input) < _INPUT_BYTES_MAX)
            self._input += data
            self._changed.notify_all()

    def end_input(self) -> None:
        """Send the end of the input."""
        with self._changed:
            self._input_ended = True
            self._changed.notify_all()

    def resize(self, rows: int, columns: int) -> None:
        """Send a new size of the user's terminal."""
        with self._changed:
            self._size, self._size_changed = (rows, columns), True
            self._changed.notify_all()

    def leave(self) -> None:
        """End the session; the process continues. `output` ends."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def output(self) -> Iterator[bytes]:
        """Yield the output until the process has exited or the session is left. Raises GavelError."""
        for message in self._wire.follow(self._next_call, self._patience_s):
            if message.HasField("opened") and (missed := self._on_opened(message.opened)):
                notice = f"{missed} bytes of output are missing here" if missed > 0 else _NEW_PROCESS
                yield f"\r\n[gavel: {notice}]\r\n".encode()
            if message.input_bytes:
                self._on_input_bytes(message.input_bytes)
            if message.data:
                self._position += len(message.data)
                yield message.data
            if message.HasField("exit_code"):
                self.exit_code = message.exit_code
                self.leave()
                return
            if self._left:
                return

    def _next_call(self) -> Call[Any]:
        """Return the call for the next connection."""
        with self._changed:
            self._connection, self._sent = self._connection + 1, None
            self._changed.notify_all()
            number = self._connection
        return calls.connect.with_request(lambda: self._requests(number))

    def _on_opened(self, opened: pb.ConnectionOpened) -> int:
        """Continue from what the terminal has; return how many bytes of output were lost since the last connection.

        The number is negative if it is the terminal of a new process.
        """
        with self._changed:
            missed = opened.offset - self._position if self.opened is not None else 0
            is_first, self.opened, self._position = self.opened is None, opened, opened.offset
            self._confirm(opened.input_bytes)
            self._sent = self._confirmed = opened.input_bytes
            self._end_sent = False
            self._changed.notify_all()
        if is_first:
            self.on_opened()
        return missed

    def _on_input_bytes(self, input_bytes: int) -> None:
        with self._changed:
            self._confirm(input_bytes)
            self._changed.notify_all()

    def _confirm(self, input_bytes: int) -> None:
        count = max(input_bytes - self._confirmed, 0)
        del self._input[:count]
        self._confirmed += count

    # ------------------------------------------------------------------------------------------------- requests

    def _requests(self, connection: int) -> Iterator[pb.ToJob]:
        """Yield the messages of one connection, as they arise. Runs in a thread of gRPC."""
        self._opening.offset = self._position
        if self._size is not None:
            self._opening.size.rows, self._opening.size.columns = self._size
        yield pb.ToJob(open=self._opening)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over(connection) or self._has_news)
                if self._is_over(connection):
                    return
                message = self._next_message()
            yield message

    def _is_over(self, connection: int) -> bool:
        return self._left or self._connection != connection

    @property
    def _has_news(self) -> bool:
        if self._sent is None:
            return False
        return self._size_changed or self._unsent > 0 or (self._input_ended and not self._end_sent)

    @property
    def _unsent(self) -> int:
        """How many bytes of input were not sent on this connection."""
        return self._confirmed + len(self._input) - (self._sent or 0)

    def _next_message(self) -> pb.ToJob:
        """Return the message about the size, the next input or its end, whichever comes first."""
        assert self._sent is not None
        if self._size_changed and self._size is not None:
            self._size_changed = False
            return pb.ToJob(size=pb.TerminalSize(rows=self._size[0], columns=self._size[1]))
        if self._unsent:
            start = self._sent - self._confirmed
            data = bytes(self._input[start : start + _CHUNK_BYTES])
            self._sent += len(data)
            return pb.ToJob(data=data)
        self._end_sent = True
        return pb.ToJob(end=True)
