"""Members of a group pass each other every batch, once and in order, whoever dies, stops or comes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training.data.staging import AHEAD, LOOK_S, Staging, owner

EPOCH = 12
PATIENCE_S = 30.0


class World:
    """Members in one process, in virtual time. While one waits, the others prepare what is theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 100.0
        self.members: list[Staging] = []
        self.stopped: set[int] = set()
        self.prepared: list[int] = []

    def add(self) -> tuple[Staging, int]:
        """Let a member join; return it and its first number."""
        member = Staging(str(self.folder), PATIENCE_S, clock=lambda: self.now_s, sleep=self.sleep)
        first = member.join(EPOCH, 0)
        self.members.append(member)
        return member, first

    def sleep(self, seconds: float) -> None:
        """Let time pass and members prepare. Virtual time passes fast."""
        self.now_s += max(seconds, LOOK_S)
        for member in self.members:
            if id(member) not in self.stopped and member.is_member:
                for number in member.to_prepare():
                    self.prepared.append(number)
                    member.put(number, content(number))

    def kill(self, member: Staging) -> None:
        """End a member as kill -9 does: its file stays, its lock goes."""
        os.close(member._fd)
        member._fd = -1
        self.members.remove(member)


def content(number: int) -> bytes:
    """Return the bytes of a batch."""
    return b"batch %d" % number * 20


def test_each_batch_is_prepared_once(tmp_path: Path) -> None:
    """Four members in step receive all batches of three epochs; at the end nothing is left."""
    world = World(tmp_path / "group")
    members = [world.add()[0] for _ in range(4)]
    for number in range(3 * EPOCH):
        assert [member.take(number) for member in members] == [content(number)] * 4
    assert sorted(set(world.prepared)) == sorted(world.prepared)
    assert set(range(3 * EPOCH)) <= set(world.prepared) <= set(range(3 * EPOCH + 4 * AHEAD))
    for member in members:
        member.leave()
    assert list((tmp_path / "group").iterdir()) == []


def test_batches_that_all_have_passed_are_removed(tmp_path: Path) -> None:
    """Never more batches lie there than the window has."""
    world = World(tmp_path)
    members = [world.add()[0] for _ in range(2)]
    for number in range(3 * EPOCH):
        for member in members:
            member.take(number)
        assert len(list(tmp_path.glob("*.batch"))) <= 2 * AHEAD


@pytest.mark.parametrize("seed", range(40))
def test_every_survivor_receives_each_batch_once_in_order(tmp_path: Path, seed: int) -> None:
    """Members are killed, stopped, continued and added at random; nobody receives wrong bytes or waits for ever."""
    chance = random.Random(seed)
    world = World(tmp_path)
    following = dict([world.add() for _ in range(4)])
    for _ in range(150):
        member = chance.choice(world.members)
        event = chance.random()
        if event < 0.03 and len(world.members) > 1:
            world.kill(member)
        elif event < 0.06:
            world.stopped.add(id(member))
        elif event < 0.09:
            world.stopped.discard(id(member))
        elif event < 0.12 and len(world.members) < 6:
            new, first = world.add()
            assert first % EPOCH == 0
            following[new] = first
        elif id(member) not in world.stopped:
            began_s = world.now_s
            received = member.take(following[member])
            assert received in (content(following[member]), None)
            assert world.now_s - began_s <= 3 * PATIENCE_S
            following[member] += 1
            if not member.is_member:
                # It finishes its epoch alone, and then joins again.
                member.leave()
                world.members.remove(member)
                new, first = world.add()
                following[new] = first
    for member in list(world.members):
        member.leave()
    assert not list(tmp_path.glob("member-*")) or world.stopped


def test_a_member_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    """Its batches fall to the others at their next look."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    assert [member.take(0) for member in (first, second)] == [content(0)] * 2
    world.kill(second)
    began_s = world.now_s
    assert [first.take(number) for number in range(1, EPOCH)] == [content(n) for n in range(1, EPOCH)]
    assert world.now_s - began_s < PATIENCE_S
    assert len(list(tmp_path.glob("member-*"))) == 1


def test_a_member_that_stops_is_left_behind(tmp_path: Path) -> None:
    """After `patience_s` the others go on; the stopped member then sees that it is no member."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    for member in (first, second):
        member.take(0)
    world.stopped.add(id(second))
    assert [first.take(number) for number in range(1, EPOCH)] == [content(n) for n in range(1, EPOCH)]
    assert not second.is_member
    assert second.take(1) is None
    second.leave()
    assert second.join(EPOCH, EPOCH) == EPOCH


def test_a_new_member_joins_at_the_next_epoch(tmp_path: Path) -> None:
    """It waits for the others there, and then takes what they take."""
    world = World(tmp_path)
    first, _ = world.add()
    for number in range(EPOCH - 2):
        first.take(number)
    second, begins = world.add()
    assert begins == EPOCH
    for number in (EPOCH - 2, EPOCH - 1):
        assert first.take(number) == content(number)
    assert [member.take(EPOCH) for member in (first, second)] == [content(EPOCH)] * 2


def test_a_damaged_batch_is_not_used(tmp_path: Path) -> None:
    """A batch whose sum is wrong counts as missing, and the member prepares it itself."""
    world = World(tmp_path)
    member, _ = world.add()
    world.sleep(1.0)
    (tmp_path / "0.batch").write_bytes(b"\0\0\0\0something else")
    assert member.take(0) is None
    assert member.take(1) == content(1)


def test_without_room_a_member_prepares_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no file can be written, each member prepares all batches, and waits for nobody."""
    world = World(tmp_path)
    member, _ = world.add()

    def full(old: str, new: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    assert [member.take(number) for number in range(EPOCH)] == [None] * EPOCH
    assert list(tmp_path.glob("*.batch")) == []


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=9), st.integers(0, 10**6))
def test_only_the_batches_of_a_member_that_goes_move(names: set[str], number: int) -> None:
    """Who prepares a batch depends on no other member than the one that is chosen."""
    members = dict.fromkeys(names, (0, 0.0))
    chosen = owner(number, members)
    for name in names - {chosen}:
        assert owner(number, dict.fromkeys(names - {name}, (0, 0.0))) == chosen
