"""Messages between nodes: whatever a broken or foreign process sends, no wrong bytes are used or kept."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gavel.training.data import peers
from gavel.training.data.arena import hash_of
from gavel.training.data.peers import ANSWER, FULL, GET, GONE, HIT, MISS, PUT, REQUEST, STORED, Peer
from tests.training.data.gang import LENGTH, PATIENCE_S, SECRET, Gang
from tests.training.leases import eventually

SALT, ITEMS = bytes(range(16)), 9
KEY, OTHER_KEY = hash_of(b"1"), hash_of(b"2")
RAW = b"the right bytes"
Behaviour = Callable[[socket.socket], None]


class Node:
    """A process at the port of a node that behaves in a given way, and counts who connects."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def peer(self) -> Peer:
        """Return the node as a process asks it."""
        return Peer("n2", self._listener.getsockname()[:2], bytes.fromhex(SECRET), SALT, ITEMS)

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if self.connections < 0:
                sock.close()
                return
            self.connections += 1
            self._held.append(sock)
            # An asker that has given up closes the connection.
            try:
                self._behaviour(sock)
            except OSError:
                continue

    def close(self) -> None:
        """End the node."""
        self.connections = -1
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        for sock in (self._listener, *self._held):
            sock.close()


@pytest.fixture
def node() -> Iterator[Callable[[Behaviour], Node]]:
    """A function that starts a node."""
    nodes: list[Node] = []

    def start(behaviour: Behaviour) -> Node:
        nodes.append(Node(behaviour))
        return nodes[-1]

    yield start
    for each in nodes:
        each.close()


def receive(sock: socket.socket, count: int) -> bytes:
    """Receive so many bytes; fewer if the other side closes."""
    data = b""
    while len(data) < count and (part := sock.recv(count - len(data))):
        data += part
    return data


def shake_hands(sock: socket.socket, secret: str = SECRET) -> bytes:
    """Prove that this is a node of the gang; return the key of the connection."""
    greeting = peers.greeting()
    sock.sendall(greeting)
    sent = greeting, receive(sock, peers.HELLO_BYTES)[: -peers.PROOF_BYTES]
    sock.sendall(peers.proof(bytes.fromhex(secret), b"node", *sent))
    return peers.connection_key(bytes.fromhex(secret), *sent)


def answering(*answers: Callable[[bytes, int], bytes]) -> Behaviour:
    """Return a node that answers requests one after the other, each by a function of the key and the number."""

    def behave(sock: socket.socket) -> None:
        key = shake_hands(sock)
        for number, answer in enumerate(answers, 1):
            kind, length, _, _ = REQUEST.unpack(receive(sock, REQUEST.size))
            receive(sock, length)
            sock.sendall(answer(key, number))
            del kind
        sock.close()

    return behave


def right(key: bytes, number: int, answer: int = HIT, raw: bytes = RAW, item_key: bytes = KEY) -> bytes:
    """Return an answer as a node sends it."""
    return ANSWER.pack(answer, len(raw), peers.sum_of(key, number, answer, item_key, raw)) + raw


def test_right_answers_are_used(node: Callable[[Behaviour], Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """An item, a miss, a full node and a stored item, over one connection."""
    monkeypatch.setattr(peers, "ANSWER_S", PATIENCE_S)
    partner = node(
        answering(
            right,
            lambda key, number: right(key, number, MISS, b""),
            lambda key, number: right(key, number, FULL, bytes(8)),
            lambda key, number: right(key, number, STORED, b""),
        )
    )
    peer = partner.peer()
    assert [peer.get(KEY) for _ in range(3)] == [(HIT, RAW), (MISS, b""), (FULL, bytes(8))]
    assert peer.put(KEY, RAW) == STORED
    assert (partner.connections, peer.fault) == (1, "")


WRONG: dict[str, Behaviour] = {
    "a foreign process": lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9),
    "closed at once": lambda sock: sock.close(),
    "another secret": lambda sock: shake_hands(sock, "00" * 16) and None,
    "half an answer": answering(lambda key, number: right(key, number)[:-3]),
    "half a head": answering(lambda key, number: right(key, number)[:9]),
    "a wrong sum": answering(lambda key, number: right(key, number)[:-1] + b"!"),
    "an item of another key": answering(lambda key, number: right(key, number, item_key=OTHER_KEY)),
    "an answer to another request": answering(lambda key, number: right(key, number + 1)),
    "an answer of another connection": answering(lambda key, number: right(bytes(32), number)),
    "too long": answering(lambda key, number: ANSWER.pack(HIT, peers.ITEM_BYTES_MAX + 1, bytes(16))),
    "an unknown answer": answering(lambda key, number: right(key, number, 77)),
    "stored, which was not asked": answering(lambda key, number: right(key, number, STORED, b"")),
    "full, without what is free": answering(lambda key, number: right(key, number, FULL, b"")),
    "a miss with bytes": answering(lambda key, number: right(key, number, MISS)),
}


@pytest.mark.parametrize("behaviour", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_answer_is_none(node: Callable[[Behaviour], Node], behaviour: Behaviour) -> None:
    """The node counts as gone, and is not asked again for a while."""
    partner = node(behaviour)
    peer = partner.peer()
    assert peer.get(KEY) == (GONE, b"")
    assert peer.fault
    assert peer.get(KEY) == (GONE, b"")
    assert peer.put(KEY, RAW) == GONE
    eventually(lambda: partner.connections >= 1)
    assert partner.connections == 1


def silent(sock: socket.socket) -> None:
    """Send nothing."""


def slow(sock: socket.socket) -> None:
    """Answer, but without an end."""
    key = shake_hands(sock)
    receive(sock, REQUEST.size)
    sock.sendall(right(key, 1)[:-1])


@pytest.mark.parametrize("behaviour", [silent, slow])
def test_a_slow_node_is_left_alone(
    node: Callable[[Behaviour], Node], monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour
) -> None:
    """After its time is over it is not asked for 10 s, and then again."""
    shift_s = 0.0
    clock = peers.time.monotonic
    monkeypatch.setattr(peers.time, "monotonic", lambda: clock() + shift_s)
    partner = node(behaviour)
    peer = partner.peer()
    assert [peer.get(KEY) for _ in range(50)] == [(GONE, b"")] * 50
    eventually(lambda: partner.connections >= 1)
    assert partner.connections == 1
    shift_s = peers.ALONE_S
    assert peer.get(KEY) == (GONE, b"")
    eventually(lambda: partner.connections >= 2)
    assert partner.connections == 2


def test_a_port_without_a_listener_is_a_node_that_is_gone() -> None:
    """A refused connection is like a dead node."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        peer = Peer("n2", reserved.getsockname()[:2], bytes.fromhex(SECRET), SALT, ITEMS)
        assert peer.get(KEY) == (GONE, b"")


# ---------------------------------------------------------------------------------------------- hostile askers


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gang]:
    """Two nodes, of which the second one has all items."""
    gang = Gang(tmp_path, monkeypatch, 2)
    yield gang
    gang.close()


def ask(gang: Gang, salt: bytes, secret: str = SECRET) -> tuple[socket.socket, bytes]:
    """Connect to the second node as an asker; return the connection and its key."""
    sock = socket.create_connection(("127.0.0.1", gang.ports["n2"]), timeout=60)
    greeting = receive(sock, peers.GREETING_BYTES)
    sent = greeting, peers.greeting() + peers.DATA_SET.pack(salt, ITEMS)
    sock.sendall(sent[1] + peers.proof(bytes.fromhex(secret), b"asker", *sent))
    return sock, peers.connection_key(bytes.fromhex(secret), *sent)


def is_closed(sock: socket.socket) -> bool:
    """Wait until the other side closes; return whether it has sent nothing before that."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def request(key: bytes, number: int, kind: int, raw: bytes = b"", length: int | None = None) -> bytes:
    """Return a request for the item KEY."""
    size = len(raw) if length is None else length
    return REQUEST.pack(kind, size, KEY, peers.sum_of(key, number, kind, KEY, raw)) + raw


def test_a_connection_that_breaks_a_rule_is_closed(gang: Gang) -> None:
    """Wrong secrets, sums, lengths and kinds: the connection ends, nothing is kept, and the node answers others."""
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    salt = sets[0]._salt
    sock, _ = ask(gang, salt, "00" * 16)
    assert is_closed(sock)
    with socket.create_connection(("127.0.0.1", gang.ports["n2"]), timeout=60) as sock:
        receive(sock, peers.GREETING_BYTES)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        assert is_closed(sock)
    for make in (
        lambda key: request(key, 1, PUT, RAW)[:-1] + b"!",
        lambda key: request(key, 2, PUT, RAW),
        lambda key: request(key, 1, PUT, b"", peers.ITEM_BYTES_MAX + 1),
        lambda key: request(key, 1, 77),
        lambda key: request(key, 1, GET, RAW),
    ):
        sock, key = ask(gang, salt)
        assert len(receive(sock, peers.PROOF_BYTES)) == peers.PROOF_BYTES
        sock.sendall(make(key))
        assert is_closed(sock)
        sock.close()
    sock, key = ask(gang, salt)
    receive(sock, peers.PROOF_BYTES)
    for number, kind, raw, expected in (
        (1, GET, b"", right(key, 1, MISS, b"")),
        (2, PUT, RAW, right(key, 2, STORED, b"")),
        (3, GET, b"", right(key, 3)),
    ):
        sock.sendall(request(key, number, kind, raw))
        assert receive(sock, len(expected)) == expected
    sock.close()
    assert gang.epoch(sets, 1) == ITEMS


def test_connections_that_prove_nothing_are_few(gang: Gang) -> None:
    """Of more than 64, the oldest one is closed; those that have proven themselves stay."""
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    gang.epoch(sets, 1)
    strangers = [socket.create_connection(("127.0.0.1", gang.ports["n2"]), timeout=60) for _ in range(70)]
    for sock in strangers[:6]:
        receive(sock, peers.GREETING_BYTES)
        assert is_closed(sock)
    assert gang.epoch(sets, 2) == 0
    for sock in strangers:
        sock.close()


def test_an_asker_that_does_not_read_is_not_answered_without_end(gang: Gang) -> None:
    """It gets what the buffers hold; the rest waits in them, and other askers are answered."""
    gang.storage.item_bytes = 1 << 20
    sets = gang.data_sets(ITEMS, ITEMS << 20)
    gang.epoch(sets, 1)
    sock, key = ask(gang, sets[0]._salt)
    receive(sock, peers.PROOF_BYTES)
    sock.sendall(b"".join(request(key, number, PUT, b"x" * 1000) for number in (1,)))
    sock.sendall(b"".join(request(key, number, GET) for number in range(2, 2000)))
    assert gang.epoch(sets, 2) == 0
    sock.close()
