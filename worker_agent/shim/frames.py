"""The messages between an agent and the server of a terminal (terminal.py): a kind, a length and the content.

Standard library only, because the shim uses this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

# From the agent: open, input, size of the terminal, end of the input. From the server: opened, output, how much input
# the process has received, its exit code, and that another connection has replaced this one.
OPEN, DATA, SIZE, END = b"O", b"D", b"W", b"E"
RECEIVED, EXIT, REPLACED = b"T", b"X", b"R"
# The largest content of a frame.
CONTENT_BYTES_MAX = 1 << 16

_HEAD = struct.Struct(">cI")
_SIZE, _RECEIVED, _EXIT = struct.Struct(">HH"), struct.Struct(">Q"), struct.Struct(">i")


def pack(kind: bytes, content: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEAD.pack(kind, len(content)) + content


def pack_size(rows: int, columns: int) -> bytes:
    """Return the frame with the size of a terminal."""
    return pack(SIZE, _SIZE.pack(min(rows, 0xFFFF), min(columns, 0xFFFF)))


def size_of(content: bytes) -> tuple[int, int]:
    """Return the rows and columns in a frame of this kind."""
    rows, columns = _SIZE.unpack(content)
    return rows, columns


def input_bytes_content(input_bytes: int) -> bytes:
    """Return the content of a frame with the number of bytes of input that the process has received."""
    return _RECEIVED.pack(input_bytes)


def pack_input_bytes(input_bytes: int) -> bytes:
    """Return the frame with the number of bytes of input that the process has received."""
    return pack(RECEIVED, input_bytes_content(input_bytes))


def input_bytes_of(content: bytes) -> int:
    """Return the number in a frame of this kind."""
    (input_bytes,) = _RECEIVED.unpack(content)
    return int(input_bytes)


def exit_content(code: int) -> bytes:
    """Return the content of a frame with the exit code of the process."""
    return _EXIT.pack(code)


def pack_exit(code: int) -> bytes:
    """Return the frame with the exit code of the process."""
    return pack(EXIT, exit_content(code))


def exit_of(content: bytes) -> int:
    """Return the exit code in a frame of this kind."""
    (code,) = _EXIT.unpack(content)
    return int(code)


class Frames:
    """The frames in a stream of bytes that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield kind and content of the frames that are complete with `data`; raise ValueError for too long a frame."""
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > CONTENT_BYTES_MAX:
                raise ValueError(f"a frame of {length:,} bytes; the limit is {CONTENT_BYTES_MAX:,}")
            end = _HEAD.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield kind, content
