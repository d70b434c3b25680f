"""Ranks that are linked by real sockets in one process: late, cut off, slow, and beside strangers."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gavel.training.environment import Run
from gavel.training.gang.agreement import Decision
from gavel.training.gang.lines import LINE_BYTES_MAX, hello
from gavel.training.gang.links import STRANGERS_MAX, ChairLink, MemberLink
from gavel.training.gate import NO_LIMIT, Gate
from tests.support.ports import free_port


class Gang:
    """Ranks with a gate and a link each, driven by the test."""

    def __init__(self, world: int) -> None:
        self.port = free_port()
        self.base = Run(Path("."), "12", "17", 3, 2, 0, world, None, ("127.0.0.1", self.port))
        self.gates = [Gate() for _ in range(world)]
        self.links: dict[int, ChairLink | MemberLink] = {}
        self.decided: dict[int, list[Decision]] = {rank: [] for rank in range(world)}

    def start(self, *ranks: int) -> None:
        """Start these ranks."""
        for rank in ranks:
            gate = self.gates[rank]
            gate.looping = True

            def heed(decision: Decision, rank: int = rank, gate: Gate = gate) -> None:
                self.decided[rank].append(decision)
                gate.decide(decision.step, decision.stop)

            link = ChairLink if rank == 0 else MemberLink
            self.links[rank] = link(
                replace(self.base, rank=rank),
                lambda question, gate=gate: gate.promise(question.patience_s, question.stop),
                heed,
            )

    def until(self, holds: Callable[[], object], within_s: float = 60.0, skip_s: float = 0.0) -> None:
        """Let all ranks exchange messages until the condition holds. `skip_s`: how far all clocks are ahead."""
        until_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < until_s, "the condition did not come to hold"
            for link in list(self.links.values()):
                link.tick(time.monotonic() + skip_s)
            time.sleep(0.002)

    def connect(self) -> socket.socket:
        """Open a connection to rank 0 from a stranger."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    @property
    def chair(self) -> ChairLink:
        """Rank 0's link."""
        link = self.links[0]
        assert isinstance(link, ChairLink)
        return link

    def all_decided(self) -> bool:
        """Return whether every rank that is up has a decision to stop."""
        return all(any(each.stop for each in self.decided[rank]) for rank in self.links)

    def ends(self) -> set[int]:
        """Return the steps at which the ranks will stop."""
        return {gate.limit for gate in self.gates}


@pytest.fixture
def gang() -> Iterator[Gang]:
    """Three ranks, all up and connected."""
    new_gang = Gang(3)
    new_gang.start(0, 1, 2)
    new_gang.until(lambda: len(new_gang.chair._ranks) == 2)
    yield new_gang
    for link in new_gang.links.values():
        link.close()


def test_all_agree_on_the_step_of_the_furthest(gang: Gang) -> None:
    """Any rank may ask; all get the same step, that of the furthest."""
    for gate, done in zip(gang.gates, (7, 3, 9), strict=True):
        gate.done = done
    gang.links[2].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    assert gang.decided == {rank: [Decision(10, True)] for rank in range(3)}
    assert gang.ends() == {10}


def test_ranks_that_all_ask_at_once_get_one_decision(gang: Gang) -> None:
    """The ranks ask at once because their leases end at the same moment."""
    for link in gang.links.values():
        link.ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    assert gang.ends() == {1}


def test_a_checkpoint_in_between_is_agreed_on_and_holds_no_rank(gang: Gang) -> None:
    """After a periodic checkpoint the limits are gone."""
    gang.chair.save(time.monotonic())
    gang.until(lambda: all(gang.decided.values()))
    assert gang.decided[1] == [Decision(1, False)]
    for gate in gang.gates:
        gate.done = 1
        assert gate.arrive(1).save
    assert gang.ends() == {NO_LIMIT}


def test_a_question_before_rank_0_is_up_is_repeated() -> None:
    """A rank that asks too early is answered once rank 0 is there."""
    late = Gang(2)
    late.start(1)
    late.links[1].ask(time.monotonic(), 20.0)
    late.until(lambda: late.links[1]._opener._retry_at_s > 0, skip_s=0)
    late.start(0)
    late.until(late.all_decided)
    assert late.ends() == {1}
    for link in late.links.values():
        link.close()


def test_a_missing_rank_gets_the_decision_when_it_comes() -> None:
    """The others decide half-way to the signal; the late rank gets the decision, and stops there or at its step."""
    late = Gang(3)
    late.start(0, 1)
    late.until(lambda: len(late.chair._ranks) == 1)
    late.gates[0].done = 5
    late.links[0].ask(time.monotonic(), 20.0)
    late.until(late.all_decided, skip_s=11.0)
    late.gates[2].done = 8
    late.start(2)
    late.until(late.all_decided)
    assert late.ends() == {6}
    assert late.gates[2].arrive(8).stop
    for link in late.links.values():
        link.close()


def test_a_connection_that_breaks_in_the_middle_is_made_again(gang: Gang) -> None:
    """A rank that was cut off before its answer arrived is asked again."""
    lost = gang.links[1]
    lost._connection.socket.shutdown(socket.SHUT_RDWR)
    gang.links[0].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    assert gang.ends() == {1}


def test_a_finished_rank_counts_without_being_asked(gang: Gang) -> None:
    """The steps of a finished rank bind the others."""
    gang.gates[2].done = 100
    gang.links[2].report_end(100)
    gang.until(lambda: gang.chair.chair._ended)
    gang.links.pop(2).close()
    gang.links[1].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    assert {gate.limit for gate in gang.gates[:2]} == {100}


def test_rank_0_sends_its_end_before_it_leaves(gang: Gang) -> None:
    """The other ranks are notified that they must do all their steps."""
    gang.links[0].report_end(100)
    gang.until(lambda: gang.decided[1] and gang.decided[2])
    gang.links.pop(0).close()
    gang.links[1].ask(time.monotonic(), 20.0)
    gang.links[1].tick(time.monotonic())
    assert gang.ends() == {100}


STRANGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\n",
    b"null\n",
    b"[" * 400 + b"\n",
    b"x" * (LINE_BYTES_MAX + 1),
    b'{"ask": 1}\n',
    b'{"gavel": 1, "job": "12", "epoch": 3, "attempt": 1, "rank": 1}\n{"ask": 1}\n',
    b'{"gavel": 1, "job": "13", "epoch": 3, "attempt": 2, "rank": 1}\n{"ask": 1}\n',
    b'{"gavel": 1, "job": "12", "epoch": 3, "attempt": 2, "rank": 0}\n{"ask": 1}\n',
    b'{"gavel": 1, "job": "12", "epoch": 3, "attempt": 2, "rank": 9}\n{"ask": 1}\n',
    b'{"gavel": 1, "job": "12", "epoch": 3, "attempt": 2, "rank": true}\n{"ask": 1}\n',
]


@pytest.mark.parametrize("words", STRANGE)
def test_strangers_are_cut_off_and_change_nothing(gang: Gang, words: bytes) -> None:
    """A connection that does not introduce itself at once as a rank of this attempt is closed; the ranks continue."""
    stranger = gang.connect()
    stranger.sendall(words)
    stranger.setblocking(False)
    gang.until(lambda: closed(stranger))
    assert gang.chair.chair.stop_decision is None
    assert gang.chair.chair._question is None
    gang.links[1].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)


NONSENSE = [
    {"ask": -1},
    {"ask": "soon"},
    {"ask": float("nan")},
    {"round": 1},
    {"round": 1, "at": 2**60},
    {"round": 1, "at": -4},
    {"ended": 1.5},
    {},
]


@pytest.mark.parametrize("words", NONSENSE, ids=str)
def test_nonsense_of_a_rank_ends_its_connection_only(gang: Gang, words: dict[str, object]) -> None:
    """An impossible number never becomes a step; the true rank connects again and is answered."""
    impostor = gang.connect()
    introduction = hello(replace(gang.base, rank=1))
    impostor.sendall(json.dumps(introduction).encode() + b"\n" + json.dumps(words).encode() + b"\n")
    impostor.setblocking(False)
    gang.until(lambda: closed(impostor))
    assert gang.chair.chair.stop_decision is None
    gang.until(lambda: len(gang.chair._ranks) == 2)
    gang.links[1].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    assert gang.ends() == {1}


def test_silent_connections_keep_no_rank_out(gang: Gang) -> None:
    """Silent connections make room for new ones, and are closed after a while."""
    crowd = []
    for _ in range(2):
        crowd += [gang.connect() for _ in range(STRANGERS_MAX)]
        gang.until(lambda: len(gang.chair._strangers) == STRANGERS_MAX)
    crowd[0].setblocking(False)
    gang.until(lambda: closed(crowd[0]))
    gang.links[2]._lose()
    gang.until(lambda: len(gang.chair._ranks) == 2)
    gang.links[2].ask(time.monotonic(), 20.0)
    gang.until(gang.all_decided)
    gang.until(lambda: not gang.chair._strangers, skip_s=3.0)
    for each in crowd:
        each.close()


def test_a_member_leaves_a_rank_0_that_sends_nonsense(gang: Gang) -> None:
    """The member cuts the connection, and connects again."""
    gang.chair._ranks[1].socket.sendall(b'{"decided": -7, "stop": true}\n')
    gang.until(lambda: gang.links[1]._connection is None)
    assert gang.decided[1] == []
    gang.until(lambda: gang.links[1]._connection is not None)


def closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection."""
    with contextlib.suppress(BlockingIOError):
        try:
            return connection.recv(4096) == b""
        except ConnectionError:
            return True
    return False
