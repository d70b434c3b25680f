"""The connections between ranks: rank 0 listens, the others call, and call again when they are cut off.

Both kinds are driven by one thread (`session.py`), which calls `tick` at least every 50 ms and whenever one of
`sockets()` has something to say. Opening may wait for a name server, so it has a thread of its own each time.

Who connects has `HELLO_S` to say that it is a rank of this attempt, and only so many may wait for that at a
time; beyond that, and for anything that is no message, a connection is closed. A rank that connects again
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
from gavel.training.gang.lines import Cut, Lines, Message, hello, left_s, put, rank_in, taken, whole

log = logging.getLogger("gavel.training")

HELLO_S = 2.0
STRANGERS_MAX = 16
RETRY_S = 0.25
TOLD_AFTER_S = 30.0

Answer = Callable[[Where], int]  # a promise of this rank, see gate.py
Heed = Callable[[Decision], None]


class Opening:
    """A socket that somebody else opens: tried again and again, never waited for."""

    def __init__(self, what: str, attempt: Callable[[], socket.socket]) -> None:
        self._what, self._attempt = what, attempt
        self._opened: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._again_s = 0.0
        self._failing_since_s: float | None = None

    def take(self, now_s: float) -> socket.socket | None:
        """The socket, once it is open."""
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
            if now_s - since_s > TOLD_AFTER_S:
                log.warning("gavel: cannot %s: %s; still trying", self._what, fault)
                self._failing_since_s = None


class ChairLink:
    """Rank 0's side: the others' connections, and the chair that decides."""

    def __init__(self, run: Run, answer: Answer, heed: Heed) -> None:
        self._run, self._answer, self._heed = run, answer, heed
        self.chair = Chair(run.world)
        self._listener: socket.socket | None = None
        self._strangers: dict[Lines, float] = {}
        self._ranks: dict[int, Lines] = {}
        self._opening: Opening | None = None
        if run.coordinator is not None:
            address = run.coordinator
            where = f"listen on {address[0]}:{address[1]} for the other ranks"
            self._opening = Opening(where, lambda: _listen(address, run.world))

    def sockets(self) -> list[socket.socket]:
        """What to wait for."""
        lines = [*self._strangers, *self._ranks.values()]
        return [each.socket for each in lines] + ([self._listener] if self._listener else [])

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """This rank's lease ends."""
        self._tell(self.chair.call(now_s, ends_in_s, stop=True))

    def save(self, now_s: float) -> None:
        """A periodic checkpoint is due."""
        self._tell(self.chair.call(now_s, 0.0, stop=False))

    def ended(self, step: int) -> None:
        """This rank has done all its steps."""
        self._tell(self.chair.ended(0, step))

    def tick(self, now_s: float) -> None:
        """Hear everybody, and decide what is to be decided."""
        if self._listener is None and self._opening is not None:
            self._listener = self._opening.take(now_s)
        self._accept(now_s)
        for stranger, until_s in list(self._strangers.items()):
            self._hear_stranger(stranger, late=now_s > until_s)
        for rank, lines in list(self._ranks.items()):
            try:
                for message in lines.receive():
                    self._hear(rank, message, now_s)
            except Cut:
                self._lose(rank, lines)
        self._tell(self.chair.passed(now_s))

    def close(self) -> None:
        """Close everything; for a child process that inherited it."""
        for each in self.sockets():
            with contextlib.suppress(OSError):
                each.close()

    def _accept(self, now_s: float) -> None:
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._strangers[Lines(connection)] = now_s + HELLO_S
            while len(self._strangers) > STRANGERS_MAX:  # the one that has been silent longest
                self._drop(next(iter(self._strangers)))

    def _hear_stranger(self, stranger: Lines, late: bool) -> None:
        rank = 0
        try:
            messages = stranger.receive()
            if messages:
                rank = rank_in(messages[0], self._run)
                del self._strangers[stranger]
                self._welcome(rank, stranger)
                for message in messages[1:]:
                    self._hear(rank, message, time.monotonic())
            elif late:
                raise Cut("said nothing")
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

    def _hear(self, rank: int, message: Message, now_s: float) -> None:
        if "ask" in message:
            self._tell(self.chair.call(now_s, left_s(message, "ask"), stop=True))
        elif "ended" in message:
            self._tell(self.chair.ended(rank, whole(message, "ended")))
        else:
            self._tell(self.chair.answered(rank, whole(message, "round"), whole(message, "at")))

    def _tell(self, words: list[Where | Decision]) -> None:
        for said in words:
            for rank in list(self._ranks):
                self._send(rank, said)
            if isinstance(said, Decision):
                self._heed(said)
            else:
                self._tell(self.chair.answered(0, said.round, self._answer(said)))

    def _send(self, rank: int, said: Where | Decision) -> None:
        lines = self._ranks[rank]
        try:
            lines.send(put(said))
        except Cut:
            self._lose(rank, lines)

    def _lose(self, rank: int, lines: Lines) -> None:
        if self._ranks.get(rank) is lines:
            del self._ranks[rank]
        lines.close()


class MemberLink:
    """The side of every other rank: one connection to rank 0."""

    def __init__(self, run: Run, answer: Answer, heed: Heed) -> None:
        self._run, self._answer, self._heed = run, answer, heed
        self._lines: Lines | None = None
        self._to_say: dict[str, Message] = {}  # said again on every new connection
        self._opening: Opening | None = None
        if run.coordinator is not None:
            address = run.coordinator
            where = f"reach rank 0 at {address[0]}:{address[1]}"
            self._opening = Opening(where, lambda: socket.create_connection(address, timeout=HELLO_S))

    def sockets(self) -> list[socket.socket]:
        """What to wait for."""
        return [self._lines.socket] if self._lines is not None else []

    def ask(self, now_s: float, ends_in_s: float) -> None:
        """This rank's lease ends."""
        self._say("ask", {"ask": ends_in_s})

    def save(self, now_s: float) -> None:
        """Periodic checkpoints are rank 0's business."""

    def ended(self, step: int) -> None:
        """This rank has done all its steps."""
        self._say("ended", {"ended": step})

    def tick(self, now_s: float) -> None:
        """Connect if need be, and hear what rank 0 says."""
        if self._lines is None and self._opening is not None:
            connection = self._opening.take(now_s)
            if connection is not None:
                self._lines = Lines(connection)
                for message in [hello(self._run), *self._to_say.values()]:
                    self._send(message)
        try:
            for message in self._lines.receive() if self._lines is not None else []:
                said = taken(message)
                if isinstance(said, Decision):
                    self._heed(said)
                else:
                    self._send({"round": said.round, "at": self._answer(said)})
        except Cut:
            self._lose()

    def close(self) -> None:
        """Close it; for a child process that inherited it."""
        self._lose()

    def _say(self, key: str, message: Message) -> None:
        if key not in self._to_say:
            self._to_say[key] = message
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
    """A listener on that address; on all of this machine's, where the name is not one of its own."""
    fault: OSError | None = None
    found = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)
    places = [(family, place) for family, _, _, _, place in found]
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
