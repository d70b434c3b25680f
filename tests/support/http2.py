"""HTTP/2 frames built by hand, for requests that no gRPC library would send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
EMPTY_MESSAGE = bytes(5)


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Build one frame."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def header(name: bytes, value: bytes) -> bytes:
    """Build a header without compression."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request(
    path: bytes, more: Iterable[tuple[bytes, bytes]] = (), body: bytes = EMPTY_MESSAGE, stream: int = 1
) -> bytes:
    """Build a call of a method with one message."""
    headers = (
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc"), *more),
    )
    block = b"".join(header(name, value) for name, value in headers)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


def answer(address: str, sent: bytes, patience_s: float = 20.0) -> bytes:
    """Send these bytes, and return the server's reply until the first call or the connection ends."""
    host, _, port = address.rpartition(":")
    received = b""
    with socket.create_connection((host, int(port)), patience_s) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + sent)
        while b"grpc-status" not in received and (data := connection.recv(1 << 16)):
            received += data
    return received
