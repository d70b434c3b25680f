"""The process that answers for the cache of this node to the other nodes of a gang.

The first process of a job that opens a data set on a node starts it, and it ends with that process. It is a process
and not a thread, so that the training loop does not delay the answers, nor they the loop. `peers.py` has the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import cast

from gavel.training.data import peers
from gavel.training.data.node_arena import NodeArena
from gavel.training.data.peers import FULL, GET, HIT, PUT, STORED, BrokenPeer
from gavel.training.environment import CacheNodes, cache_nodes_of
from gavel.training.gang.links import listen

# How long a new connection may take to prove itself, and how many may be doing so.
HELLO_S = 2.0
STRANGERS_MAX = 64
BACKLOG = 1024
# The directory that has `gavel`.
_LIBRARY = str(Path(__file__).resolve().parents[3])
# The servers of this process, which end when the pipes to them close.
_servers: list[subprocess.Popen[bytes]] = []

# A conversation yields how many bytes it waits for, and receives them.
Conversation = Generator[int, bytes, None]


def start(nodes: CacheNodes) -> subprocess.Popen[bytes] | None:
    """Start the process that answers for this node; return None if another one does, or none can."""
    if nodes.own not in nodes.addresses or not sys.executable:
        return None
    try:
        listener = listen(nodes.addresses[nodes.own], BACKLOG)
    except OSError:
        # Another process of the job listens.
        return None
    path = os.pathsep.join(filter(None, (_LIBRARY, os.environ.get("PYTHONPATH"))))
    with listener, contextlib.suppress(OSError):
        server = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
        )
        _servers.append(server)
        return server
    return None


class Server:
    """The data sets of this node, and the connections to it."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._arenas: dict[bytes, NodeArena] = {}
        # The connections that have not proven themselves, the oldest first.
        self._strangers: dict[Connection, None] = {}

    def arena(self, salt: bytes, items: int) -> NodeArena:
        """Return the arena of a data set."""
        return self._arenas.setdefault(salt, NodeArena("", salt.hex(), items, None))

    def admit(self, connection: Connection) -> None:
        """Let a new connection prove itself; of too many that do not, drop the oldest one."""
        self._strangers[connection] = None
        if len(self._strangers) > STRANGERS_MAX:
            self.drop(next(iter(self._strangers)))

    def drop(self, connection: Connection) -> None:
        """Close a connection that has not proven itself."""
        if connection in self._strangers:
            connection.close()
            self.know(connection)

    def know(self, connection: Connection) -> None:
        """Record that a connection has proven itself, or is gone."""
        self._strangers.pop(connection, None)


class Connection(asyncio.Protocol):
    """A process that asks this node for items."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the new connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.admit(self)
        asyncio.get_running_loop().call_later(HELLO_S, self._server.drop, self)
        self._conversation = self._converse()
        self._awaited = next(self._conversation)

    def data_received(self, data: bytes) -> None:
        """Continue the conversation."""
        self._buffer += data
        self._advance()

    def pause_writing(self) -> None:
        """Answer nothing more: the other side does not read."""
        self._may_write = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Answer again."""
        self._may_write = True
        self._transport.resume_reading()
        self._advance()

    def connection_lost(self, fault: Exception | None) -> None:
        """Forget the connection."""
        self._server.know(self)

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _advance(self) -> None:
        try:
            while self._may_write and len(self._buffer) >= self._awaited:
                data = bytes(self._buffer[: self._awaited])
                del self._buffer[: self._awaited]
                self._awaited = self._conversation.send(data)
        except (BrokenPeer, StopIteration):
            self.close()

    def _converse(self) -> Conversation:
        secret, write = self._server.secret, self._transport.write
        greeting = peers.greeting()
        write(greeting)
        hello = yield peers.HELLO_BYTES
        sent = greeting, hello[: -peers.PROOF_BYTES]
        proof = peers.proof(secret, b"asker", *sent)
        if not hello.startswith(peers.MAGIC) or not hmac.compare_digest(proof, hello[-peers.PROOF_BYTES :]):
            raise BrokenPeer("it does not know the secret")
        self._server.know(self)
        write(peers.proof(secret, b"node", *sent))
        key = peers.connection_key(secret, *sent)
        arena = self._server.arena(*peers.DATA_SET.unpack(sent[1][peers.GREETING_BYTES :]))
        number = 0
        while True:
            kind, length, item_key, checksum = peers.REQUEST.unpack((yield peers.REQUEST.size))
            if length > peers.ITEM_BYTES_MAX:
                raise BrokenPeer(f"a request has {length} bytes")
            item = (yield length) if length else b""
            number += 1
            if not hmac.compare_digest(checksum, peers.sum_of(key, number, kind, item_key, item)):
                raise BrokenPeer("the sum of a request is wrong")
            answer, raw = answer_to(kind, item_key, item, arena)
            head = peers.ANSWER.pack(answer, len(raw), peers.sum_of(key, number, answer, item_key, raw))
            write(head + raw)


def answer_to(kind: int, key: bytes, item: bytes, node_arena: NodeArena) -> tuple[int, bytes]:
    """Return the answer to a request, and its bytes."""
    arena = node_arena.open()
    if kind == PUT:
        return (STORED if arena is not None and arena.put(key, item) else FULL), b""
    if kind != GET or item:
        raise BrokenPeer(f"a request is of kind {kind}")
    raw = arena.get(key) if arena is not None else None
    if raw is not None and len(raw) <= peers.ITEM_BYTES_MAX:
        return HIT, raw
    return peers.absence(arena)


async def serve(listener: socket.socket, secret: bytes, parent: int) -> None:
    """Answer until the pipe from the parent process closes."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def on_pipe() -> None:
        if not os.read(parent, 64) and not ended.done():
            ended.set_result(None)

    loop.add_reader(parent, on_pipe)
    server = Server(secret)
    async with await loop.create_server(lambda: Connection(server), sock=listener, backlog=BACKLOG):
        await ended


def main() -> None:
    """Answer for this node on the socket that the parent process passes."""
    nodes = cache_nodes_of()
    if nodes is not None:
        with socket.socket(fileno=int(sys.argv[1])) as listener:
            asyncio.run(serve(listener, nodes.secret, sys.stdin.fileno()))


if __name__ == "__main__":
    main()
