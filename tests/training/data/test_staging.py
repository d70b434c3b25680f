"""Members of a group pass each other every batch, once and in order, whoever dies, stops or comes."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from gavel.training.data.staging import AHEAD, LOOK_S, Staging
from tests.training.data.stops import stopped_after

EPOCH = 12
PATIENCE_S = 30.0
# How many batches a member prepares at once.
WORKERS = 2


class World:
    """Members in one process, in virtual time. While one waits, the others prepare batches, at random speeds."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.now_s, self.chance = folder, 100.0, random.Random(seed)
        self.members: list[Staging] = []
        self.stopped: set[int] = set()
        # By member: the batches that it prepares now, and all that it has begun.
        self.working: dict[Staging, list[int]] = {}
        self.begun: list[tuple[int, Staging]] = []
        self.gone: set[Staging] = set()

    def add(self, position: int = 0) -> tuple[Staging, int]:
        """Let a member join; return it and its first number."""
        member = Staging(str(self.folder), PATIENCE_S, clock=lambda: self.now_s, sleep=self.sleep)
        first = member.join(EPOCH, position)
        self.members.append(member)
        self.working[member] = []
        return member, first

    def sleep(self, seconds: float) -> None:
        """Let time pass and members prepare. Virtual time passes fast."""
        self.now_s += max(seconds, LOOK_S)
        for member in self.chance.sample(self.members, len(self.members)):
            if id(member) not in self.stopped and member.is_member:
                self.work(member)

    def work(self, member: Staging) -> None:
        """Let a member begin the preparation of a batch, or end one."""
        working = self.working[member]
        number = None if len(working) == WORKERS else member.claim()
        if number is not None:
            working.append(number)
            self.begun.append((number, member))
        elif working:
            self.end(member, self.chance.choice(working))

    def end(self, member: Staging, number: int) -> None:
        """Let a member end the preparation of a batch."""
        self.working[member].remove(number)
        member.put(number, content(number))

    def kill(self, member: Staging) -> None:
        """End a member as kill -9 does: its files stay, its locks go."""
        member.forget()
        self.members.remove(member)
        self.gone.add(member)

    def leave(self, member: Staging) -> None:
        """Let a member end what it prepares, and leave."""
        if not member.is_member:
            self.gone.add(member)
        for number in list(self.working[member]):
            self.end(member, number)
        member.leave()
        self.members.remove(member)

    def begun_twice(self) -> list[int]:
        """Return the batches that were begun more than once, without those that a member could not end."""
        left_behind = {member for member in self.members if not member.is_member}
        begun = Counter(number for number, member in self.begun if member not in self.gone | left_behind)
        return [number for number, times in begun.items() if times > 1]


def content(number: int) -> bytes:
    """Return the bytes of a batch."""
    return b"batch %d" % number * 20


@pytest.mark.parametrize("seed", range(20))
def test_each_batch_is_prepared_once(tmp_path: Path, seed: int) -> None:
    """Four members in step receive all batches of three epochs; at the end nothing is left."""
    world = World(tmp_path / "group", seed)
    members = [world.add()[0] for _ in range(4)]
    for number in range(3 * EPOCH):
        assert [member.take(number) for member in members] == [content(number)] * 4
    begun = sorted(number for number, _ in world.begun)
    assert begun == list(range(len(begun)))
    assert 3 * EPOCH <= len(begun) <= 3 * EPOCH + 4 * AHEAD
    for member in members:
        world.leave(member)
    assert list((tmp_path / "group").iterdir()) == []


def test_batches_that_all_have_passed_are_removed(tmp_path: Path) -> None:
    """Never more batches lie there than the window has."""
    world = World(tmp_path)
    members = [world.add()[0] for _ in range(2)]
    for number in range(3 * EPOCH):
        for member in members:
            member.take(number)
        assert len(list(tmp_path.glob("*/*.batch"))) <= 2 * AHEAD


@pytest.mark.parametrize("seed", range(60))
def test_every_survivor_receives_each_batch_once_in_order(tmp_path: Path, seed: int) -> None:
    """Members are killed, stopped, continued and added at random; nobody receives wrong bytes or waits for ever.

    A batch is prepared again only if the member that was preparing it was killed or left behind.
    """
    world = World(tmp_path, seed)
    chance = world.chance
    following = dict([world.add() for _ in range(4)])
    steady = world.members[0]
    for _ in range(200):
        member = chance.choice(world.members)
        event = 1.0 if member is steady else chance.random()
        if event < 0.04:
            world.kill(member)
        elif event < 0.08:
            world.stopped.add(id(member))
        elif event < 0.12:
            world.stopped.discard(id(member))
        elif event < 0.2 and len(world.members) < 6:
            new, first = world.add()
            assert first % EPOCH == 0
            following[new] = first
        elif id(member) not in world.stopped:
            began_s = world.now_s
            received = member.take(following[member])
            assert received == content(following[member]) or not member.is_member
            assert world.now_s - began_s <= 3 * PATIENCE_S
            following[member] += 1
            if not member.is_member:
                # It finishes its epoch alone, and then joins again.
                world.leave(member)
                new, first = world.add(-(-following[member] // EPOCH) * EPOCH)
                following[new] = first
                steady = new if member is steady else steady
        world.sleep(0.0)
    assert world.begun_twice() == []
    for member in list(world.members):
        member.leave()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_member_was_preparing_is_prepared_again(tmp_path: Path) -> None:
    """And nothing else is: at most as many batches as it has workers."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    for number in range(3):
        assert [member.take(number) for member in (first, second)] == [content(number)] * 2
    while len(world.working[second]) < WORKERS:
        world.work(second)
    lost = world.working[second]
    world.kill(second)
    assert [first.take(number) for number in range(3, EPOCH)] == [content(n) for n in range(3, EPOCH)]
    begun = Counter(number for number, _ in world.begun)
    assert {number: times for number, times in begun.items() if times > 1} == dict.fromkeys(lost, 2)


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    """When a member is killed, its workers may live on: it counts as gone, and its claims are free."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    world.work(second)
    (number,) = world.working[second]
    (reading, ready), (waiting, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(ready, b".")
        os.read(waiting, 1)
        os._exit(0)
    try:
        os.read(reading, 1)
        world.kill(second)
        assert set(first.look()) == {first.name}
        assert first.claim() == number
    finally:
        for fd in (reading, ready, waiting, end):
            os.close(fd)
        os.waitpid(child, 0)


def test_a_forked_child_does_not_leave_for_its_parent(tmp_path: Path) -> None:
    """What a child does with its copy of the member changes nothing for the group."""
    member, _ = World(tmp_path).add()
    child = os.fork()
    if child == 0:
        member.leave()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert member.is_member
    assert set(member.look()) == {member.name}


def test_a_member_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    """Its batches fall to the others at their next look."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    assert [member.take(0) for member in (first, second)] == [content(0)] * 2
    world.kill(second)
    began_s = world.now_s
    assert [first.take(number) for number in range(1, EPOCH)] == [content(n) for n in range(1, EPOCH)]
    assert world.now_s - began_s < PATIENCE_S
    assert len(list(tmp_path.glob("*/member-*"))) == 1


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


def test_a_new_member_begins_above_what_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the others begin an epoch while a member joins, it begins the one after: no batch is prepared twice."""
    world = World(tmp_path)
    first, _ = world.add()
    rename = os.rename

    def slow_rename(old: str, new: str) -> None:
        if "member-" in new:
            for number in range(EPOCH + 2):
                first.take(number)
        rename(old, new)

    monkeypatch.setattr(os, "rename", slow_rename)
    second, begins = world.add()
    assert begins == 2 * EPOCH
    for number in range(EPOCH + 2, 2 * EPOCH):
        assert first.take(number) == content(number)
    assert [member.take(2 * EPOCH) for member in (first, second)] == [content(2 * EPOCH)] * 2
    assert world.begun_twice() == []


def test_what_a_stopped_member_was_preparing_falls_to_others(tmp_path: Path) -> None:
    """The others wait for `patience_s` once. The stopped member gives nothing to a group that has left it behind."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    world.work(second)
    (number,) = world.working[second]
    world.stopped.add(id(second))
    began_s = world.now_s
    assert [first.take(each) for each in range(EPOCH)] == [content(each) for each in range(EPOCH)]
    assert world.now_s - began_s < 2 * PATIENCE_S
    assert not second.is_member
    world.end(second, number)
    assert not list(tmp_path.glob(f"*/{number}.batch"))
    assert second.claim() is None


def test_a_member_may_stop_anywhere_in_a_claim(tmp_path: Path) -> None:
    """After whichever call of the system it stops, the others wait for `patience_s` once, and go on as members."""
    system = [(fcntl, "flock")]
    system += [(os, name) for name in ("link", "open", "write", "fstat", "stat", "unlink", "close")]
    for calls in itertools.count(1):
        world = World(tmp_path / str(calls))
        first, second = world.add()[0], world.add()[0]
        was_stopped = stopped_after(calls, second.claim, system)
        world.stopped.add(id(second))
        began_s = world.now_s
        assert [first.take(number) for number in range(EPOCH)] == [content(n) for n in range(EPOCH)]
        assert world.now_s - began_s < 2 * PATIENCE_S
        if not was_stopped:
            break
    assert calls > 1


def test_a_damaged_batch_is_not_used(tmp_path: Path) -> None:
    """A batch whose sum is wrong counts as missing, and the member prepares it itself."""
    world = World(tmp_path)
    member, _ = world.add()
    world.sleep(1.0)
    (ring,) = tmp_path.iterdir()
    (ring / "0.batch").write_bytes(b"\0\0\0\0something else")
    assert member.take(0) is None
    assert member.take(1) == content(1)


def test_without_room_each_member_prepares_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no batch can be written, each member prepares all batches, waits for nobody and keeps few of them."""
    world = World(tmp_path)
    members = [world.add()[0] for _ in range(2)]

    def full(old: str, new: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    began_s = world.now_s
    for number in range(EPOCH):
        assert [member.take(number) for member in members] == [content(number)] * 2
        assert all(len(member._kept) <= WORKERS + 1 for member in members)
    assert world.now_s - began_s < PATIENCE_S
    assert list(tmp_path.glob("*/*.batch")) == []


def test_batches_take_no_more_than_their_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members prepare as far ahead as the room for batches permits."""
    monkeypatch.setattr("gavel.training.data.staging.ROOM_BYTES", 3 * len(content(10)))
    world = World(tmp_path)
    members = [world.add()[0] for _ in range(4)]
    for number in range(2 * EPOCH):
        for member in members:
            assert member.take(number) == content(number)
        # A batch may lie there before its size is known.
        assert number < AHEAD * 4 or len(list(tmp_path.glob("*/*.batch"))) <= 3
