"""Connections of browsers: how many there are, and how long each may be silent or leave what we send unread."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gavel.web.door import HEADERS
from gavel.web.problems import MEDIA_TYPE, not_http

CONNECTIONS_MAX = 1000
# How long a browser may leave what we send unread, and how long the headers of a request may take to arrive.
UNREAD_S, HEADERS_S = 30.0, 60.0
# How long a connection without a request stays open for the next one.
KEEP_ALIVE_S = 50


class BrowserProtocol(H11Protocol):
    """HTTP/1.1 that gives up browsers which do not read what they asked for, or do not say what they want.

    If there are too many connections, the one that has been without a request for longest makes room.
    """

    _unread: asyncio.TimerHandle | None = None
    _silent: asyncio.TimerHandle | None = None
    _idle_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > CONNECTIONS_MAX:
            others = [other for other in self._all() if other is not self and other.is_idle]
            min(others, key=lambda other: other._idle_since_s, default=self).transport.abort()

    def _all(self) -> list[BrowserProtocol]:
        return [other for other in self.connections if isinstance(other, BrowserProtocol)]

    @property
    def is_idle(self) -> bool:
        """Whether there is no request in progress on this connection."""
        # uvicorn's types hide that there may have been no request yet.
        return not self.cycle or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        _cancel(self._silent)
        self._idle_since_s = self.loop.time()
        self._silent = self.loop.call_later(HEADERS_S, self._drop_silent)

    def _drop_silent(self) -> None:
        if self.is_idle:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._unread)
        _cancel(self._silent)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request of HTTP/1.1 like every other error, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = not_http().encoded()
            headers = [
                *HEADERS.items(),
                ("content-type", MEDIA_TYPE),
                ("content-length", str(len(body))),
                ("cache-control", "no-store"),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
