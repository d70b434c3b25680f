"""Messages between ranks: one JSON object per line, over a socket that never blocks.

A line has at most 512 bytes, and the first line of a connection must name the job, epoch, attempt and rank of its
sender. A connection that sends anything else is closed.

    {"gavel": 1, "job": "12", "epoch": 3, "attempt": 2, "rank": 1}     rank → 0: the first line
    {"ask": 19.2}                                                      rank → 0: my lease ends in 19.2 s
    {"where": 1, "patience_s": 9.6, "stop": true}                      0 → rank: round 1: which step are you in?
    {"round": 1, "at": 118}                                            rank → 0: my answer in round 1: step 118
    {"ended": 5000}                                                    rank → 0: I have done all 5000 steps
    {"decided": 118, "stop": true}                                     0 → rank: save at step 118 and stop there
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
from typing import Any

from gavel.training.environment import STEPS_MAX, Run
from gavel.training.gang.agreement import Decision, Question

LINE_BYTES_MAX = 512
VERSION = 1

Message = dict[str, Any]


class ConnectionLost(Exception):
    """The connection is over: it was closed, broke, or carried an invalid message."""


class Connection:
    """A socket that carries messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = sock
        self._buffer = b""

    def receive(self) -> list[Message]:
        """Return the messages that have arrived in full; raise ConnectionLost if the connection is over."""
        try:
            data = self.socket.recv(4096)
        except BlockingIOError:
            return []
        except OSError as fault:
            raise ConnectionLost(str(fault)) from fault
        if not data:
            raise ConnectionLost("closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if any(len(line) > LINE_BYTES_MAX for line in [*lines, self._buffer]):
            raise ConnectionLost("a line is too long")
        return [_message(line) for line in lines]

    def send(self, message: Message) -> None:
        """Send a message; raise ConnectionLost if the connection is over or the peer does not read."""
        data = json.dumps(message).encode() + b"\n"
        try:
            if self.socket.send(data) != len(data):
                raise ConnectionLost("the peer does not read")
        except OSError as fault:
            raise ConnectionLost(str(fault)) from fault

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise ConnectionLost("not JSON") from fault
    if not isinstance(message, dict):
        raise ConnectionLost("not an object")
    return message


# ------------------------------------------------------------------------------------------- messages


def hello(run: Run) -> Message:
    """Return the message with which a rank identifies itself."""
    return {
        "gavel": VERSION,
        "job": run.job,
        "epoch": run.epoch,
        "attempt": run.attempt,
        "rank": run.rank,
    }


def sender_rank(message: Message, run: Run) -> int:
    """Return the rank that sent this first message; raise ConnectionLost if it is not a rank of this attempt."""
    rank = message.get("rank")
    if type(rank) is not int or not 1 <= rank < run.world or message != {**hello(run), "rank": rank}:
        raise ConnectionLost("not of this attempt")
    return rank


def encode(message: Question | Decision) -> Message:
    """Encode a message of rank 0."""
    if isinstance(message, Question):
        return {"where": message.round, "patience_s": message.patience_s, "stop": message.stop}
    return {"decided": message.step, "stop": message.stop}


def decode(message: Message) -> Question | Decision:
    """Decode a message of rank 0; raise ConnectionLost if it is invalid."""
    stop = message.get("stop") is True
    if "where" in message:
        return Question(count_in(message, "where"), duration_in_s(message, "patience_s"), stop)
    return Decision(count_in(message, "decided"), stop)


def count_in(message: Message, key: str) -> int:
    """Return a count in a message; raise ConnectionLost if it is invalid."""
    value = message.get(key)
    if type(value) is not int or not 0 <= value <= STEPS_MAX:
        raise ConnectionLost(f"no count: {key}")
    return value


def duration_in_s(message: Message, key: str) -> float:
    """Return a duration in a message; raise ConnectionLost if it is invalid."""
    value: Any = message.get(key)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ConnectionLost(f"no duration: {key}")
    return float(value)
