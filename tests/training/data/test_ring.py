"""A job that joins receives batches only of jobs that lived when it joined; what dead ones have left is removed."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gavel.training.data import ring
from gavel.training.data.staging import Staging
from tests.training.data.stops import stopped_after
from tests.training.data.test_staging import EPOCH, PATIENCE_S, World, content

OLD = b"prepared by old code"


def test_a_new_member_never_receives_what_a_killed_group_has_left(tmp_path: Path) -> None:
    """A group was killed with batches, claims and half-written files there; the next job prepares all batches anew."""
    world = World(tmp_path)
    killed = [world.add()[0] for _ in range(2)]
    killed[0].claim()
    killed[0].put(0, OLD)
    killed[1].claim()
    (tmp_path / os.listdir(tmp_path)[0] / "new-x.batch").write_bytes(OLD)
    for member in killed:
        world.kill(member)
    member, first = world.add()
    assert first == 0
    assert member.claim() == 0
    member.put(0, content(0))
    assert [member.take(number) for number in range(EPOCH)] == [content(number) for number in range(EPOCH)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_member_that_was_suspended_meets_no_newer_group(tmp_path: Path) -> None:
    """Its group left it behind and was killed. When it goes on, it neither receives nor gives batches of other code."""
    world = World(tmp_path)
    first, second = world.add()[0], world.add()[0]
    assert second.claim() == 0
    world.stopped.add(id(second))
    assert first.take(0) == content(0)
    assert not second.is_member
    world.kill(first)
    third, _ = world.add()
    assert (third.claim(), third.claim()) == (0, 1)
    second.put(0, OLD)
    third.put(1, content(1))
    assert second.take(1) is None
    third.put(0, content(0))
    assert [third.take(number) for number in range(2)] == [content(0), content(1)]
    second.leave()
    assert third.is_member
    assert second.join(EPOCH, 0) == EPOCH


@pytest.mark.parametrize("held_at", ["mkstemp", "write", "rename"])
def test_a_suspended_process_that_goes_on_in_the_middle_of_a_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_at: str
) -> None:
    """It has seen that it is a member, and is suspended while its group goes and another comes: it disturbs none."""
    world = World(tmp_path)
    suspended, _ = world.add()
    owner: Any = {"mkstemp": tempfile, "write": os, "rename": os}[held_at]
    held_at = "fdopen" if held_at == "write" else held_at
    function, newer = getattr(owner, held_at), []

    def held(*arguments: Any, **words: Any) -> Any:
        monkeypatch.setattr(owner, held_at, function)
        os.unlink(suspended._own_path)
        newer.append(world.add()[0])
        return function(*arguments, **words)

    assert suspended.claim() == 0
    monkeypatch.setattr(owner, held_at, held)
    suspended.put(0, OLD)
    (member,) = newer
    assert suspended.take(0) is None
    assert [member.take(number) for number in range(EPOCH)] == [content(number) for number in range(EPOCH)]


def test_a_process_that_looks_at_a_dead_member_is_not_taken_for_it(tmp_path: Path) -> None:
    """Two processes that look at once both see that it is dead."""
    world = World(tmp_path)
    killed, _ = world.add()
    path = killed._own_path
    world.kill(killed)
    fd = os.open(path, os.O_RDONLY)
    try:
        # The lock of a look, which holds it for a moment.
        assert not ring.is_held(fd)
        world.add()
        assert not os.path.exists(path)
    finally:
        os.close(fd)


def test_jobs_that_start_together_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that joins while another one has made a ring, and is no member of it yet, waits and enters that ring."""
    waits, pause, mkdtemp = threading.Event(), threading.Event(), tempfile.mkdtemp

    def sleep(seconds: float) -> None:
        waits.set()
        pause.wait(seconds)

    first = Staging(str(tmp_path), PATIENCE_S)
    # Its time stands still, so it waits for as long as it takes.
    second = Staging(str(tmp_path), PATIENCE_S, clock=lambda: 0.0, sleep=sleep)
    thread = threading.Thread(target=second.join, args=(EPOCH, 0))

    def slow(**words: Any) -> str:
        path = mkdtemp(**words)
        monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
        thread.start()
        while thread.is_alive() and not waits.wait(0.01):
            pass
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", slow)
    first.join(EPOCH, 0)
    thread.join()
    assert set(first.look()) == set(second.look()) == {first.name, second.name}
    for member in (first, second):
        member.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_suspended_while_it_joins_stops_no_other(tmp_path: Path) -> None:
    """The others wait for the lock of the group for some seconds, and then share their batches."""
    world = World(tmp_path)
    with ring.locked(str(tmp_path), time.monotonic, time.sleep):
        began_s = world.now_s
        members = [world.add()[0] for _ in range(2)]
        assert world.now_s - began_s <= 3 * ring.PATIENCE_S
    for number in range(EPOCH):
        assert [member.take(number) for member in members] == [content(number)] * 2
    assert world.begun_twice() == []


def test_a_job_may_be_killed_anywhere_while_it_joins(tmp_path: Path) -> None:
    """After whichever call of the system: the next job finds neither its files nor those of the group before."""
    system = [(fcntl, "flock"), (tempfile, "mkdtemp"), (tempfile, "mkstemp")]
    system += [(os, name) for name in ("open", "listdir", "rename", "pwrite", "unlink", "rmdir")]
    for calls in itertools.count(1):
        world = World(tmp_path / str(calls))
        killed, _ = world.add()
        killed.claim()
        killed.put(0, OLD)
        world.kill(killed)
        joining = Staging(str(world.folder), PATIENCE_S)
        if not stopped_after(calls, partial(joining.join, EPOCH, 0), system):
            break
        joining.forget()
        began_s = world.now_s
        member, first = world.add()
        assert (first, world.now_s) == (0, began_s)
        assert [member.take(number) for number in range(EPOCH)] == [
            content(number) for number in range(EPOCH)
        ]
        assert len(list(world.folder.iterdir())) == 1
    assert calls > 10


def test_a_ring_that_is_removed_under_a_member_is_no_error(tmp_path: Path) -> None:
    """The agent may remove all batches of a user whose jobs it takes to be gone; a job goes on, and joins again."""
    world = World(tmp_path / "group")
    member, _ = world.add()
    assert member.claim() == 0
    shutil.rmtree(tmp_path / "group")
    member.put(0, content(0))
    assert member.take(0) is None
    member.leave()
    assert not (tmp_path / "group").exists()
    assert member.join(EPOCH, EPOCH) == EPOCH
