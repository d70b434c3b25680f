"""What ranks say to each other: one JSON object a line, over a socket that never blocks.

A line has at most 512 bytes, and the first one of a connection must say which job, epoch, attempt and rank is
speaking. Whoever says anything else is cut off.

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
    """The connection is over: closed, broken, or the other side said what may not be said."""


class Lines:
    """One connection, as messages."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connection
        self._buffer = b""

    def receive(self) -> list[Message]:
        """The messages that have arrived in full. Raises Cut."""
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
            raise Cut("a line too long")
        return [_message(line) for line in lines]

    def send(self, message: Message) -> None:
        """Say it. Raises Cut; so does a peer that does not listen."""
        data = json.dumps(message).encode() + b"\n"
        try:
            if self.socket.send(data) != len(data):
                raise Cut("does not listen")
        except OSError as fault:
            raise Cut(str(fault)) from fault

    def close(self) -> None:
        """Close it."""
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
    """What a rank says first."""
    return {
        "gavel": VERSION,
        "job": run.job,
        "epoch": run.epoch,
        "attempt": run.attempt,
        "rank": run.rank,
    }


def rank_in(message: Message, run: Run) -> int:
    """The rank that says hello, if it is one of this attempt. Raises Cut."""
    rank = message.get("rank")
    if type(rank) is not int or not 1 <= rank < run.world or message != {**hello(run), "rank": rank}:
        raise Cut("not of this attempt")
    return rank


def put(message: Where | Decision) -> Message:
    """What rank 0 says, as a message."""
    if isinstance(message, Where):
        return {"where": message.round, "patience_s": message.patience_s, "stop": message.stop}
    return {"decided": message.step, "stop": message.stop}


def taken(message: Message) -> Where | Decision:
    """What rank 0 said. Raises Cut."""
    stop = message.get("stop") is True
    if "where" in message:
        return Where(whole(message, "where"), left_s(message, "patience_s"), stop)
    return Decision(whole(message, "decided"), stop)


def whole(message: Message, key: str) -> int:
    """A count in a message. Raises Cut."""
    value = message.get(key)
    if type(value) is not int or not 0 <= value <= STEPS_MAX:
        raise Cut(f"no count: {key}")
    return value


def left_s(message: Message, key: str) -> float:
    """A duration in a message. Raises Cut."""
    value: Any = message.get(key)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise Cut(f"no duration: {key}")
    return float(value)
