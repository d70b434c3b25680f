"""How the nodes of a gang pass cached items to each other: messages of bounded length, each with a keyed sum.

    node → asker    "GAVELPE1", 16 random bytes
    asker → node    "GAVELPE1", 16 random bytes, the data set's key and number of items, a proof
    node → asker    a proof
    asker → node    kind (GET or PUT), length, the item's key, sum, bytes
    node → asker    answer (HIT, MISS, FULL or STORED), length, sum, bytes

A proof is an HMAC of all that was sent before, with the gang's secret: each side knows that the other one has it. The
sum of a message is keyed, too, with a key of this connection, and covers the number of the request and the key of the
item. So bytes that a broken node or a foreign process sends are refused, as are answers to another request. An asker
has one request on its way; a node that receives anything unexpected closes the connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from typing import Any

from gavel.training.data.arena import Arena

MAGIC = b"GAVELPE1"
NONCE_BYTES = 16
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
# The key of the data set, and its number of items.
DATA_SET = struct.Struct("<16sQ")
PROOF_BYTES = 32
HELLO_BYTES = GREETING_BYTES + DATA_SET.size + PROOF_BYTES
# Kind, length, key of the item, sum.
REQUEST = struct.Struct("<BI16s16s")
# Answer, length, sum.
ANSWER = struct.Struct("<BI16s")
GET, PUT = 1, 2
# The answers. FULL: the item is not here, but the node has refused items, so another one may have it. To GET, it comes
# with the number of bytes that are free.
HIT, MISS, FULL, STORED = 1, 2, 3, 4
FREE = struct.Struct("<Q")
# Not on the wire: the node did not answer, or is left alone.
GONE = 0
# Longer items are not passed on.
ITEM_BYTES_MAX = 64 << 20
# How long a node may take to answer, and how fast the bytes of an item must at least come.
ANSWER_S = 0.2
BYTES_PER_S_MIN = 50e6
# How long a node is left alone that did not answer.
ALONE_S = 10.0


class BrokenPeer(Exception):
    """The other side sent what the protocol does not permit; the message has the reason."""


def greeting() -> bytes:
    """Return the first message of either side."""
    return MAGIC + os.urandom(NONCE_BYTES)


def proof(secret: bytes, side: bytes, *sent: bytes) -> bytes:
    """Return the proof that a side, b"asker" or b"node", knows the secret."""
    return hmac.digest(secret, side + b"".join(sent), "sha256")


def connection_key(secret: bytes, *sent: bytes) -> bytes:
    """Return the key of the sums on a connection."""
    return proof(secret, b"key", *sent)


def sum_of(key: bytes, number: int, kind: int, item_key: bytes, item: bytes) -> bytes:
    """Return the sum of a request or an answer. `number`: that of the request on its connection."""
    head = struct.pack("<QB16s", number, kind, item_key)
    digest = hashlib.blake2b(head, key=key, digest_size=16)
    digest.update(item)
    return digest.digest()


def absence(arena: Arena | None) -> tuple[int, bytes]:
    """Return the answer to a request for an item that this arena does not have, and its bytes."""
    if arena is not None and not arena.has_refused:
        return MISS, b""
    return FULL, FREE.pack(0 if arena is None else arena.free)


class Peer:
    """Another node, as a process asks it. Threads and forks may use it at the same time."""

    def __init__(self, name: str, address: tuple[str, int], secret: bytes, salt: bytes, items: int) -> None:
        """`salt`: the key of the data set, of 16 bytes."""
        self.name, self._address, self._secret = name, address, secret
        self._data_set = DATA_SET.pack(salt, items)
        # Why the node did not answer the last time; empty if it did.
        self.fault = ""
        self._alone_until_s = 0.0
        self._socket: socket.socket | None = None
        self._start()

    def get(self, key: bytes) -> tuple[int, bytes]:
        """Ask for an item; return HIT and its bytes, FULL and `FREE`, or MISS or GONE without any."""
        return self._ask(GET, key, b"", (HIT, MISS, FULL))

    def put(self, key: bytes, item: bytes) -> int:
        """Give the node an item; return STORED, FULL or GONE."""
        return self._ask(PUT, key, item, (STORED, FULL))[0]

    def connect(self, timeout_s: float) -> bool:
        """Connect, unless that is done; return whether the node answers."""
        if self._process != os.getpid():
            self._start()
        with self._lock:
            try:
                self._connect(timeout_s)
            except (OSError, BrokenPeer):
                self._close()
            return self._socket is not None

    def _ask(self, kind: int, key: bytes, item: bytes, expected: tuple[int, ...]) -> tuple[int, bytes]:
        if self._process != os.getpid():
            self._start()
        with self._lock:
            if time.monotonic() < self._alone_until_s:
                return GONE, b""
            try:
                answer, received = self._exchange(self._connect(ANSWER_S), kind, key, item)
                length = FREE.size if (kind, answer) == (GET, FULL) else 0
                if answer not in expected or (answer != HIT and len(received) != length):
                    raise BrokenPeer(f"its answer is {answer}")
            except (OSError, BrokenPeer) as fault:
                self._close()
                self._alone_until_s = time.monotonic() + ALONE_S
                self.fault = str(fault) or type(fault).__name__
                return GONE, b""
            self.fault = ""
            return answer, received

    def _connect(self, timeout_s: float) -> socket.socket:
        if self._socket is not None:
            return self._socket
        until_s = time.monotonic() + timeout_s
        sock = self._socket = socket.create_connection(self._address, timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        node_greeting = _receive(sock, GREETING_BYTES, until_s)
        if not node_greeting.startswith(MAGIC):
            raise BrokenPeer("it is no node of this job")
        sent = node_greeting, greeting() + self._data_set
        sock.sendall(sent[1] + proof(self._secret, b"asker", *sent))
        if not hmac.compare_digest(_receive(sock, PROOF_BYTES, until_s), proof(self._secret, b"node", *sent)):
            raise BrokenPeer("it is no node of this job")
        self._key, self._requests = connection_key(self._secret, *sent), 0
        return sock

    def _exchange(self, sock: socket.socket, kind: int, key: bytes, item: bytes) -> tuple[int, bytes]:
        number = self._requests = self._requests + 1
        until_s = time.monotonic() + ANSWER_S + len(item) / BYTES_PER_S_MIN
        sock.settimeout(until_s - time.monotonic())
        sock.sendall(REQUEST.pack(kind, len(item), key, sum_of(self._key, number, kind, key, item)) + item)
        answer, length, checksum = ANSWER.unpack(_receive(sock, ANSWER.size, until_s))
        if length > ITEM_BYTES_MAX:
            raise BrokenPeer(f"its answer has {length} bytes")
        received = _receive(sock, length, until_s + length / BYTES_PER_S_MIN) if length else b""
        if not hmac.compare_digest(checksum, sum_of(self._key, number, answer, key, received)):
            raise BrokenPeer("the sum of its answer is wrong")
        return answer, received

    def _start(self) -> None:
        """Begin in this process, without the connection of the one from which it was forked."""
        self._lock = threading.Lock()
        self._close()
        self._process = os.getpid()
        self._key, self._requests = b"", 0

    def _close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_socket": None, "_lock": None, "_process": 0}


def _receive(sock: socket.socket, count: int, until_s: float) -> bytes:
    """Return so many bytes; raise BrokenPeer if they do not come in time."""
    parts, missing = [], count
    while missing:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise BrokenPeer("it does not answer in time")
        sock.settimeout(left_s)
        part = sock.recv(min(missing, 1 << 20))
        if not part:
            raise BrokenPeer("it closed the connection")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
