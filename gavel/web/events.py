"""Events for browsers: one log in memory, from which every browser reads at its own pace.

The log keeps the latest events only, and each is encoded once. A reader is a position in it, so that a browser that
reads slowly, or not at all, costs nothing. If its position is no longer kept, it begins again with a new copy of the
queue.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any

import msgspec

# How much of the past the log keeps.
EVENTS_MAX, BYTES_MAX = 2000, 8 * 2**20
# How much of it a reader gets at a time: so much lies in memory for each reader that is slow.
PIECE_BYTES_MAX = 128 * 1024


def encoded(kind: str, data: Any, id_: str = "") -> bytes:
    """Return one server-sent event."""
    id_line = f"id: {id_}\n" if id_ else ""
    # JSON has no line breaks of its own, so the data is one line.
    return f"{id_line}event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


class EventLog:
    """The latest events. Their ids are the name of this log and a number, so that ids of another process are known."""

    def __init__(self, events_max: int = EVENTS_MAX, size_max: int = BYTES_MAX) -> None:
        self._events_max, self._size_max = events_max, size_max
        self._name = secrets.token_hex(4)
        self._events: deque[bytes] = deque()
        self._bytes = 0
        # The number of the latest event.
        self._last = 0
        self._news = asyncio.Event()

    @property
    def last_id(self) -> str:
        """The id of the latest event."""
        return self.id_of(self._last)

    @property
    def last(self) -> int:
        """The position after the latest event."""
        return self._last

    def id_of(self, position: int) -> str:
        """Return the id of the event before a position."""
        return f"{self._name}-{position}"

    def append(self, kind: str, data: Any) -> None:
        """Add an event, and wake the readers."""
        self._last += 1
        event = encoded(kind, data, self.id_of(self._last))
        self._events.append(event)
        self._bytes += len(event)
        while len(self._events) > 1 and (
            len(self._events) > self._events_max or self._bytes > self._size_max
        ):
            self._bytes -= len(self._events.popleft())
        news, self._news = self._news, asyncio.Event()
        news.set()

    def position(self, id_: str) -> int | None:
        """Return the position after the event with this id; None if the log does not have what follows."""
        name, _, number = id_.rpartition("-")
        if name != self._name or not (number.isascii() and number.isdigit() and len(number) <= 15):
            return None
        position = int(number)
        return position if self._first <= position <= self._last else None

    @property
    def _first(self) -> int:
        """The lowest position of which all later events are kept."""
        return self._last - len(self._events)

    def after(self, position: int) -> tuple[int, bytes] | None:
        """Return the next events after a position, and the position after them; None if some are no longer kept."""
        if position < self._first:
            return None
        piece: list[bytes] = []
        size = 0
        for index in range(position - self._first, len(self._events)):
            size += len(self._events[index])
            if piece and size > PIECE_BYTES_MAX:
                break
            piece.append(self._events[index])
        return position + len(piece), b"".join(piece)

    async def wait(self, position: int, timeout_s: float) -> None:
        """Wait until there are events after a position, or until the time is over."""
        if position >= self._last:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return
