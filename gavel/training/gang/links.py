"""The connections between ranks: rank 0 listens; the others connect, and connect again when a connection breaks.

Each rank has one link: rank 0 a `ChairLink`, any other rank a `MemberLink`. The background thread of the session
(`session.py`) calls `tick` of the link at least every 50 ms, and whenever one of `sockets()` is readable. Opening a
socket may wait for a name server, so each try to open one has a thread of its own.

A new connection has `HELLO_S` to identify itself as a rank of this attempt, and at most `STRANGERS_MAX` connections may
be unidentified at a time. A connection that fails to identify itself, or sends an invalid message, is closed. When a
rank connects again, its new connection replaces the old one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from typing import Callable

from gavel.training.environment import Run
from gavel.training.gang.agreement import Chair, Decision, Question
from gavel.training.gang.lines import (
    Connection,
    ConnectionLost,
    Message,
    count_in,
    decode,
    duration_in_s,
    encode,
    hello,
    sender_rank,
)

log = logging.getLogger("gavel.training")

HELLO_S = 2.0
STRANGERS_MAX = 16
# The shortest time between two tries to open a socket.
RETRY_S = 0.25
# How long these tries must fail before a warning is logged.
LOG_AFTER_S = 30.0

# Called with rank 0's question. Returns the step that this rank promises not to pass without a decision (gate.py).
Answer = Callable[[Question], int]
# Called with rank 0's decision.
Obey = Callable[[Decision], None]


class SocketOpener:
    """Opens a socket in the background, with retries, so that the caller never waits."""

    def __init__(self, action: str, open_socket: Callable[[], socket.socket]) -> None:
        # What the socket is opened for, to be named in the warning: "listen on ..." or "reach rank 0 at ...".
        self._action = action
        self._open_socket = open_socket
        self._opened: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._retry_at_s = 0.0
        self._failing_since_s: float | None = None

    def take(self, now_s: float) -> socket.socket | None:
        """Return the socket if it is open by now, otherwise None."""
        if self._opened:
            self._thread = self._failing_since_s = None
            return self._opened.pop()
        if (self._thread is None or not self._thread.is_alive()) and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + RETRY_S
            self._thread = threading.Thread(target=self._try, name="gavel-connect", daemon=True)
            self._thread.start()
        return None

    def _try(self) -> None:
        try:
            self._opened.append(self._open_socket())
        except OSError as fault:
            now_s = time.monotonic()
            since_s = self._failing_since_s = self._failing_since_s or now_s
            if now_s - since_s > LOG_AFTER_S:
                log.warning("gavel: cannot %s: %s; still trying", self._action, fault)
                self._failing_since_s = None


class ChairLink:
    """The link of rank 0: the connections to the other ranks, and the chair, which decides."""

    def __init__(self, run: Run, answer: Answer, obey: Obey) -> None:
        self._run, self._answer, self._obey = run, answer, obey
        self.chair = Chair(run.world)
        self._listener: socket.socket | None = None
        # The unidentified connections, the oldest first, and the time by which each must have identified itself.
        self._strangers: dict[Connection, float] = {}
        self._ranks: dict[int, Connection] = {}
        self._opener: SocketOpener | None = None
        if run.coordinator is not None:
            address = run.coordinator
            action = f"listen on {address[0]}:{address[1]} for the other ranks"
            self._opener = SocketOpener(action, lambda: listen(address, run.world + STRANGERS_MAX))

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        connections = [*self._strangers, *self._ranks.values()]
        return [connection.socket for connection in connections] + (
            [self._listener] if self._listener else []
        )

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """Start a round, because the lease of this rank ends."""
        self._broadcast(self.chair.start_round(now_s, ends_in_s, stop=True))

    def save(self, now_s: float) -> None:
        """Start a round for a periodic checkpoint."""
        self._broadcast(self.chair.start_round(now_s, 0.0, stop=False))

    def report_end(self, step: int) -> None:
        """Report that this rank has done all its steps."""
        self._broadcast(self.chair.on_end(0, step))

    def tick(self, now_s: float) -> None:
        """Accept connections, handle messages, and decide once the time for answers is over."""
        if self._listener is None and self._opener is not None:
            self._listener = self._opener.take(now_s)
        self._accept(now_s)
        for stranger, until_s in list(self._strangers.items()):
            self._identify(stranger, late=now_s > until_s)
        for rank, connection in list(self._ranks.items()):
            try:
                for message in connection.receive():
                    self._handle(rank, message, now_s)
            except ConnectionLost:
                self._lose(rank, connection)
        self._broadcast(self.chair.on_time(now_s))

    def close(self) -> None:
        """Close all sockets."""
        for sock in self.sockets():
            with contextlib.suppress(OSError):
                sock.close()

    def _accept(self, now_s: float) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._strangers[Connection(sock)] = now_s + HELLO_S
            # Drop the connections that have been unidentified longest.
            while len(self._strangers) > STRANGERS_MAX:
                self._drop(next(iter(self._strangers)))

    def _identify(self, stranger: Connection, late: bool) -> None:
        rank = 0
        try:
            messages = stranger.receive()
            if messages:
                rank = sender_rank(messages[0], self._run)
                del self._strangers[stranger]
                self._welcome(rank, stranger)
                for message in messages[1:]:
                    self._handle(rank, message, time.monotonic())
            elif late:
                raise ConnectionLost("no first message")
        except ConnectionLost:
            self._drop(stranger)
            self._lose(rank, stranger)

    def _drop(self, stranger: Connection) -> None:
        self._strangers.pop(stranger, None)
        stranger.close()

    def _welcome(self, rank: int, connection: Connection) -> None:
        if rank in self._ranks:
            self._lose(rank, self._ranks[rank])
        self._ranks[rank] = connection
        message = self.chair.message_for_newcomer()
        if message is not None:
            self._send(rank, message)

    def _handle(self, rank: int, message: Message, now_s: float) -> None:
        if "ask" in message:
            self._broadcast(self.chair.start_round(now_s, duration_in_s(message, "ask"), stop=True))
        elif "ended" in message:
            self._broadcast(self.chair.on_end(rank, count_in(message, "ended")))
        else:
            self._broadcast(self.chair.on_answer(rank, count_in(message, "round"), count_in(message, "at")))

    def _broadcast(self, messages: list[Question | Decision]) -> None:
        for message in messages:
            for rank in list(self._ranks):
                self._send(rank, message)
            if isinstance(message, Decision):
                self._obey(message)
            else:
                self._broadcast(self.chair.on_answer(0, message.round, self._answer(message)))

    def _send(self, rank: int, message: Question | Decision) -> None:
        connection = self._ranks[rank]
        try:
            connection.send(encode(message))
        except ConnectionLost:
            self._lose(rank, connection)

    def _lose(self, rank: int, connection: Connection) -> None:
        if self._ranks.get(rank) is connection:
            del self._ranks[rank]
        connection.close()


class MemberLink:
    """The link of any other rank: one connection to rank 0."""

    def __init__(self, run: Run, answer: Answer, obey: Obey) -> None:
        self._run, self._answer, self._obey = run, answer, obey
        self._connection: Connection | None = None
        # Messages that are sent again on every new connection.
        self._to_repeat: dict[str, Message] = {}
        self._opener: SocketOpener | None = None
        if run.coordinator is not None:
            address = run.coordinator
            action = f"reach rank 0 at {address[0]}:{address[1]}"
            self._opener = SocketOpener(action, lambda: socket.create_connection(address, timeout=HELLO_S))

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        return [self._connection.socket] if self._connection is not None else []

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """Ask rank 0 to start a round, because the lease of this rank ends."""
        self._send_and_repeat("ask", {"ask": ends_in_s})

    def save(self, now_s: float) -> None:
        """Do nothing: rank 0 starts the rounds for periodic checkpoints."""

    def report_end(self, step: int) -> None:
        """Report that this rank has done all its steps."""
        self._send_and_repeat("ended", {"ended": step})

    def tick(self, now_s: float) -> None:
        """Connect if necessary, and handle the messages of rank 0."""
        if self._connection is None and self._opener is not None:
            sock = self._opener.take(now_s)
            if sock is not None:
                self._connection = Connection(sock)
                for message in [hello(self._run), *self._to_repeat.values()]:
                    self._send(message)
        try:
            for message in self._connection.receive() if self._connection is not None else []:
                received = decode(message)
                if isinstance(received, Decision):
                    self._obey(received)
                else:
                    self._send({"round": received.round, "at": self._answer(received)})
        except ConnectionLost:
            self._lose()

    def close(self) -> None:
        """Close the connection."""
        self._lose()

    def _send_and_repeat(self, key: str, message: Message) -> None:
        if key not in self._to_repeat:
            self._to_repeat[key] = message
            self._send(message)

    def _send(self, message: Message) -> None:
        try:
            if self._connection is not None:
                self._connection.send(message)
        except ConnectionLost:
            self._lose()

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def listen(address: tuple[str, int], backlog: int) -> socket.socket:
    """Listen on this address; if it is not an address of this machine, on all addresses of the machine."""
    fault: OSError | None = None
    resolved = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)
    candidates = [(family, socket_address) for family, _, _, _, socket_address in resolved]
    for family, socket_address in [*candidates, (socket.AF_INET, ("", address[1]))]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(socket_address)
            listener.listen(backlog)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            fault = error
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    raise fault or OSError("no address")
