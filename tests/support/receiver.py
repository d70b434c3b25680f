"""A webhook in a test: a real HTTP server that records what it receives and answers as the test says.

with Receiver() as receiver:
    # The first request is refused, the second one is never answered, and all others are confirmed.
    receiver.answers += [500, "hang"]
    ...
    first, second = receiver.wait(2)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

# The longest wait in a test; no test passes because this time is over.
DEADLINE_S = 180.0
Answer = int | Literal["hang", "drip", "reset", "redirect", "huge", "garbage"]


class Request(NamedTuple):
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self.headers["Idempotency-Key"]

    @property
    def message(self) -> Any:
        """The message, from JSON."""
        return json.loads(self.body)

    def is_signed(self, secret: bytes) -> bool:
        """Whether the signature is that of this secret."""
        signed = self.headers["Gavel-Timestamp"].encode() + b"." + self.body
        expected = "sha256=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, self.headers["Gavel-Signature"])


class Receiver:
    """The server. `answers` are used one by one; after them, every request is confirmed."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[Request] = []
        self._arrived = threading.Condition()
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._answer(self, Request(self.path, dict(self.headers), body))

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?key=a"

    def __enter__(self) -> Receiver:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self, count: int) -> list[Request]:
        """Wait for this many requests, and return all that have arrived."""
        return self.wait_for(lambda requests: len(requests) >= count)

    def wait_for(self, condition: Callable[[list[Request]], bool]) -> list[Request]:
        """Wait until this is true of the requests, of which there is at least one, and return all that have arrived."""
        with self._arrived:
            is_met = self._arrived.wait_for(lambda: self.requests and condition(self.requests), DEADLINE_S)
            assert is_met, self.requests
            return list(self.requests)

    def _answer(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._arrived:
            self.requests.append(request)
            answer = self.answers.popleft() if self.answers else 204
            self._arrived.notify_all()
        match answer:
            case "hang":
                self._closing.wait(DEADLINE_S)
            case "drip":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
                with suppress(OSError):
                    while not self._closing.wait(0.01):
                        handler.wfile.write(b"X")
            case "reset":
                # Closing with a linger time of 0 resets the connection.
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.connection.close()
            case "redirect":
                handler.send_response(302)
                handler.send_header("Location", f"{self.url}&redirected")
                handler.end_headers()
            case "huge":
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(b"a" * 10_000_000)
            case "garbage":
                handler.wfile.write(b"\x00\xff not HTTP\r\n\r\n")
            case status:
                handler.send_response(status)
                handler.end_headers()
        handler.close_connection = True
