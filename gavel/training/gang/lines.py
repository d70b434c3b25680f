"""Messages between ranks: one JSON object per line, over a socket that never blocks.

A line has at most 512 bytes, and the first line of a connection must name the job, epoch, attempt and rank of its
sender. A connection that sends anything else is closed.

    {"gavel": 1, "job": "12", "epoch": 3, "attempt": 2, "rank": 1}     rank → 0, first
    {"ask": 19.2}  {"round": 1, "at": 118}  {"ended": 5000}            rank → 0
    {"where": 1, "patience_s": 9.6, "stop": true}                      0 → rank
    {"decided": 118, "stop": true}                                     0 → rank
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
from typing import Any

from gavel.training.environment import STEPS_MAX, Run
from gavel.training.gang.agreement import Decision, Where

LINE_BYTES_MAX = 512
VERSION = 1

Message = dict[str, Any]


class Cut(Exception):
    """The connection is over: it was closed, broke, or carried an invalid message."""


class Lines:
    """A connection that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connection
        self._buffer = b""

    def receive(self) -> list[Message]:
        """Return the messages that have arrived in full; raise Cut if the connection is over."""
        try:
            data = self.socket.recv(4096)
        except BlockingIOError:
            return []
        except OSError as fault:
            raise Cut(str(fault)) from fault
        if not data:
            raise Cut("closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if any(len(line) > LINE_BYTES_MAX for line in [*lines, self._buffer]):
            raise Cut("a line is too long")
        return [_message(line) for line in lines]

    def send(self, message: Message) -> None:
        """Send a message; raise Cut if the connection is over or the peer does not read."""
        data = json.dumps(message).encode() + b"\n"
        try:
            if self.socket.send(data) != len(data):
                raise Cut("the peer does not read")
        except OSError as fault:
            raise Cut(str(fault)) from fault

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise Cut("not JSON") from fault
    if not isinstance(message, dict):
        raise Cut("not an object")
    return message


# ---------------------------------------------------------------------------------------------- words


def hello(run: Run) -> Message:
    """Return the first message of a rank."""
    return {
        "gavel": VERSION,
        "job": run.job,
        "epoch": run.epoch,
        "attempt": run.attempt,
        "rank": run.rank,
    }


def rank_in(message: Message, run: Run) -> int:
    """Return the rank that sent a first message; raise Cut if it is not of this attempt."""
    rank = message.get("rank")
    if type(rank) is not int or not 1 <= rank < run.world or message != {**hello(run), "rank": rank}:
        raise Cut("not of this attempt")
    return rank


def encoded(message: Where | Decision) -> Message:
    """Encode a message of rank 0."""
    if isinstance(message, Where):
        return {"where": message.round, "patience_s": message.patience_s, "stop": message.stop}
    return {"decided": message.step, "stop": message.stop}


def decoded(message: Message) -> Where | Decision:
    """Decode a message of rank 0; raise Cut if it is invalid."""
    stop = message.get("stop") is True
    if "where" in message:
        return Where(whole(message, "where"), left_s(message, "patience_s"), stop)
    return Decision(whole(message, "decided"), stop)


def whole(message: Message, key: str) -> int:
    """Return a count in a message; raise Cut if it is invalid."""
    value = message.get(key)
    if type(value) is not int or not 0 <= value <= STEPS_MAX:
        raise Cut(f"no count: {key}")
    return value


def left_s(message: Message, key: str) -> float:
    """Return a duration in a message; raise Cut if it is invalid."""
    value: Any = message.get(key)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise Cut(f"no duration: {key}")
    return float(value)
