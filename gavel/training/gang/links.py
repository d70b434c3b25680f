"""The connections between ranks: rank 0 listens, and the others connect, again and again if the connection breaks.

One thread (`session.py`) drives both kinds: it calls `tick` at least every 50 ms, and whenever one of `sockets()` is
readable. Opening a socket may wait for a name server, so each attempt has a thread of its own.

A new connection has `HELLO_S` to identify itself as a rank of this attempt, and at most `STRANGERS_MAX` may be
unidentified at a time. Any other connection, and one with an invalid message, is closed. A rank that connects again
replaces its old connection.
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
from gavel.training.gang.agreement import Chair, Decision, Where
from gavel.training.gang.lines import Cut, Lines, Message, decoded, encoded, hello, left_s, rank_in, whole

log = logging.getLogger("gavel.training")

HELLO_S = 2.0
STRANGERS_MAX = 16
RETRY_S = 0.25
LOG_AFTER_S = 30.0

Answer = Callable[[Where], int]  # a promise, see gate.py
Obey = Callable[[Decision], None]


class Opening:
    """A socket that is opened in the background, with retries, so that the caller never waits."""

    def __init__(self, action: str, attempt: Callable[[], socket.socket]) -> None:
        self._action, self._attempt = action, attempt
        self._opened: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._again_s = 0.0
        self._failing_since_s: float | None = None

    def take(self, now_s: float) -> socket.socket | None:
        """Return the socket once it is open; until then None."""
        if self._opened:
            self._thread = self._failing_since_s = None
            return self._opened.pop()
        if (self._thread is None or not self._thread.is_alive()) and now_s >= self._again_s:
            self._again_s = now_s + RETRY_S
            self._thread = threading.Thread(target=self._try, name="gavel-connect", daemon=True)
            self._thread.start()
        return None

    def _try(self) -> None:
        try:
            self._opened.append(self._attempt())
        except OSError as fault:
            now_s = time.monotonic()
            since_s = self._failing_since_s = self._failing_since_s or now_s
            if now_s - since_s > LOG_AFTER_S:
                log.warning("gavel: cannot %s: %s; still trying", self._action, fault)
                self._failing_since_s = None


class ChairLink:
    """The side of rank 0: the connections of the other ranks, and the chair that decides."""

    def __init__(self, run: Run, answer: Answer, obey: Obey) -> None:
        self._run, self._answer, self._obey = run, answer, obey
        self.chair = Chair(run.world)
        self._listener: socket.socket | None = None
        self._strangers: dict[Lines, float] = {}
        self._ranks: dict[int, Lines] = {}
        self._opening: Opening | None = None
        if run.coordinator is not None:
            address = run.coordinator
            action = f"listen on {address[0]}:{address[1]} for the other ranks"
            self._opening = Opening(action, lambda: _listen(address, run.world))

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        lines = [*self._strangers, *self._ranks.values()]
        return [line.socket for line in lines] + ([self._listener] if self._listener else [])

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """Start a round, because the lease of this rank ends."""
        self._broadcast(self.chair.call(now_s, ends_in_s, stop=True))

    def save(self, now_s: float) -> None:
        """Start a round for a periodic checkpoint."""
        self._broadcast(self.chair.call(now_s, 0.0, stop=False))

    def ended(self, step: int) -> None:
        """Report that this rank has done all its steps."""
        self._broadcast(self.chair.ended(0, step))

    def tick(self, now_s: float) -> None:
        """Accept connections, handle messages, and decide what is due."""
        if self._listener is None and self._opening is not None:
            self._listener = self._opening.take(now_s)
        self._accept(now_s)
        for stranger, until_s in list(self._strangers.items()):
            self._identify(stranger, late=now_s > until_s)
        for rank, lines in list(self._ranks.items()):
            try:
                for message in lines.receive():
                    self._handle(rank, message, now_s)
            except Cut:
                self._lose(rank, lines)
        self._broadcast(self.chair.passed(now_s))

    def close(self) -> None:
        """Close all sockets, in a child process that inherited them."""
        for sock in self.sockets():
            with contextlib.suppress(OSError):
                sock.close()

    def _accept(self, now_s: float) -> None:
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._strangers[Lines(connection)] = now_s + HELLO_S
            # The one that has been silent longest.
            while len(self._strangers) > STRANGERS_MAX:
                self._drop(next(iter(self._strangers)))

    def _identify(self, stranger: Lines, late: bool) -> None:
        rank = 0
        try:
            messages = stranger.receive()
            if messages:
                rank = rank_in(messages[0], self._run)
                del self._strangers[stranger]
                self._welcome(rank, stranger)
                for message in messages[1:]:
                    self._handle(rank, message, time.monotonic())
            elif late:
                raise Cut("no first message")
        except Cut:
            self._drop(stranger)
            self._lose(rank, stranger)

    def _drop(self, stranger: Lines) -> None:
        self._strangers.pop(stranger, None)
        stranger.close()

    def _welcome(self, rank: int, lines: Lines) -> None:
        if rank in self._ranks:
            self._lose(rank, self._ranks[rank])
        self._ranks[rank] = lines
        news = self.chair.joined()
        if news is not None:
            self._send(rank, news)

    def _handle(self, rank: int, message: Message, now_s: float) -> None:
        if "ask" in message:
            self._broadcast(self.chair.call(now_s, left_s(message, "ask"), stop=True))
        elif "ended" in message:
            self._broadcast(self.chair.ended(rank, whole(message, "ended")))
        else:
            self._broadcast(self.chair.answered(rank, whole(message, "round"), whole(message, "at")))

    def _broadcast(self, messages: list[Where | Decision]) -> None:
        for message in messages:
            for rank in list(self._ranks):
                self._send(rank, message)
            if isinstance(message, Decision):
                self._obey(message)
            else:
                self._broadcast(self.chair.answered(0, message.round, self._answer(message)))

    def _send(self, rank: int, message: Where | Decision) -> None:
        lines = self._ranks[rank]
        try:
            lines.send(encoded(message))
        except Cut:
            self._lose(rank, lines)

    def _lose(self, rank: int, lines: Lines) -> None:
        if self._ranks.get(rank) is lines:
            del self._ranks[rank]
        lines.close()


class MemberLink:
    """The side of every other rank: one connection to rank 0."""

    def __init__(self, run: Run, answer: Answer, obey: Obey) -> None:
        self._run, self._answer, self._obey = run, answer, obey
        self._lines: Lines | None = None
        # Sent again on every new connection.
        self._to_repeat: dict[str, Message] = {}
        self._opening: Opening | None = None
        if run.coordinator is not None:
            address = run.coordinator
            action = f"reach rank 0 at {address[0]}:{address[1]}"
            self._opening = Opening(action, lambda: socket.create_connection(address, timeout=HELLO_S))

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        return [self._lines.socket] if self._lines is not None else []

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """Start a round, because the lease of this rank ends."""
        self._send_and_repeat("ask", {"ask": ends_in_s})

    def save(self, now_s: float) -> None:
        """Do nothing: rank 0 starts the rounds for periodic checkpoints."""

    def ended(self, step: int) -> None:
        """Report that this rank has done all its steps."""
        self._send_and_repeat("ended", {"ended": step})

    def tick(self, now_s: float) -> None:
        """Connect if necessary, and handle the messages of rank 0."""
        if self._lines is None and self._opening is not None:
            connection = self._opening.take(now_s)
            if connection is not None:
                self._lines = Lines(connection)
                for message in [hello(self._run), *self._to_repeat.values()]:
                    self._send(message)
        try:
            for message in self._lines.receive() if self._lines is not None else []:
                received = decoded(message)
                if isinstance(received, Decision):
                    self._obey(received)
                else:
                    self._send({"round": received.round, "at": self._answer(received)})
        except Cut:
            self._lose()

    def close(self) -> None:
        """Close the connection, in a child process that inherited it."""
        self._lose()

    def _send_and_repeat(self, key: str, message: Message) -> None:
        if key not in self._to_repeat:
            self._to_repeat[key] = message
            self._send(message)

    def _send(self, message: Message) -> None:
        try:
            if self._lines is not None:
                self._lines.send(message)
        except Cut:
            self._lose()

    def _lose(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._lines = None


def _listen(address: tuple[str, int], world: int) -> socket.socket:
    """Listen on this address, or on all addresses of the machine if the name is not one of its own."""
    fault: OSError | None = None
    resolved = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)
    places = [(family, place) for family, _, _, _, place in resolved]
    for family, place in [*places, (socket.AF_INET, ("", address[1]))]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(world + STRANGERS_MAX)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            fault = error
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    raise fault or OSError("no address")
