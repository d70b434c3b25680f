"""The arena of the node cache returns the bytes that were stored, or nothing, whatever happens."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.training.data import arena as arenas
from gavel.training.data.arena import Arena, NoArena, hash_of
from tests.training.leases import ROOT
from worker_agent.node.node_cache import make_file


def arena_in(folder: Path, size: int = 1 << 16, items: int = 100) -> Arena:
    """Make an arena and open it."""
    path = str(folder / "arena")
    make_file(Path(path), size)
    return Arena(path, items)


def item(number: int, length: int = 100) -> bytes:
    """Return bytes that differ between numbers and lengths."""
    return random.Random(number).randbytes(length)


# ------------------------------------------------------------------------------------------------ what is stored


@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 900)), max_size=80),
    items=st.integers(1, 40),
)
def test_what_is_in_stays_and_is_returned(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[int, int]], items: int
) -> None:
    """The first bytes that were stored under a key are returned for ever; other keys are misses."""
    arena = arena_in(tmp_path_factory.mktemp("arena"), 1 << 14, items)
    stored: dict[int, bytes] = {}
    for number, length in operations:
        fits = arena.used + length <= arena.room and len(stored) < arenas.slots_for(items, 1 << 14)
        is_here = arena.put(hash_of(b"%d" % number), item(number, length))
        assert is_here == (number in stored or fits)
        if is_here:
            stored.setdefault(number, item(number, length))
        for known in range(31):
            assert arena.get(hash_of(b"%d" % known)) == stored.get(known)
    assert arena.used == sum(map(len, stored.values()))


def test_two_arenas_of_one_file_see_the_same(tmp_path: Path) -> None:
    """A reader sees what another process stores, without opening the file again."""
    writer = arena_in(tmp_path)
    reader = Arena(writer.path, 5)
    writer.put(hash_of(b"a"), b"one")
    assert reader.get(hash_of(b"a")) == b"one"
    assert reader.put(hash_of(b"a"), b"another copy")
    assert writer.get(hash_of(b"a")) == b"one"
    assert reader.used == 3


def test_a_refusal_is_remembered(tmp_path: Path) -> None:
    """Every process sees that an item was refused, and how much room is left; what is stored is no refusal."""
    arena = arena_in(tmp_path)
    other = Arena(arena.path, 100)
    assert arena.put(hash_of(b"a"), item(1, arena.room - 10))
    assert (other.has_refused, other.free) == (False, 10)
    assert not arena.put(hash_of(b"b"), item(2, 11))
    assert (other.has_refused, other.free) == (True, 10)
    assert other.put(hash_of(b"c"), item(3, 10))
    assert other.put(hash_of(b"a"), b"")
    assert (arena.has_refused, arena.free) == (True, 0)
    # A damaged end of the items.
    arena._write(arenas._END_AT, b"\xff" * 8)
    assert arena.free == 0


def test_items_of_no_bytes_and_of_a_gigabyte(tmp_path: Path) -> None:
    """An empty item is a hit; one that does not fit, or is too long for an entry, is a miss."""
    arena = arena_in(tmp_path)
    assert arena.put(hash_of(b"empty"), b"")
    assert arena.get(hash_of(b"empty")) == b""

    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 30

    for length in (1 << 30, 1 << 33):
        Huge.__len__ = lambda self, length=length: length  # type: ignore[assignment]
        assert not arena.put(hash_of(b"huge"), Huge())
    assert arena.get(hash_of(b"huge")) is None
    assert arena.used == 0
    assert arena.put(hash_of(b"small"), b"x"), "what fits is still stored"


def test_an_item_of_ten_megabytes(tmp_path: Path) -> None:
    """A long item is stored as a whole."""
    arena = arena_in(tmp_path, 11_000_000)
    large = item(1, 1000) * 10_000
    assert arena.put(hash_of(b"large"), large)
    assert arena.get(hash_of(b"large")) == large


def test_keys_that_collide(tmp_path: Path) -> None:
    """Keys with the same slot, and even with the same first word, keep their own bytes."""
    arena = arena_in(tmp_path, items=8)
    keys = [struct.pack("<QQ", 5 + 16 * (number % 3), number) for number in range(9)]
    for number, key in enumerate(keys):
        assert arena.put(key, item(number))
    assert [arena.get(key) for key in keys] == [item(number) for number in range(9)]
    assert arena.get(struct.pack("<QQ", 5, 99)) is None
    assert arena.put(b"\0" * 16, b"zero")
    assert arena.get(b"\0" * 16) == b"zero"


def test_bytes_of_another_key_are_not_returned(tmp_path: Path) -> None:
    """The sum covers the key: an entry whose key word was changed is a miss."""
    arena = arena_in(tmp_path, items=1)
    arena.put(struct.pack("<QQ", 4, 1), b"four")
    arena._map[4096:4104] = struct.pack("<Q", 8)
    assert arena.get(struct.pack("<QQ", 8, 1)) is None


# ------------------------------------------------------------------------------------------- crashes and damage


class Killed(BaseException):
    """The end of a writer."""


@pytest.mark.parametrize("seed", range(20))
def test_a_writer_that_dies_at_any_write(tmp_path: Path, seed: int) -> None:
    """A writer that ends within any of its writes, at any byte, costs a miss and no more than its item's room."""
    chance = random.Random(seed)
    arena = arena_in(tmp_path, 1 << 15)
    whole_write = arena._write
    stored: dict[int, bytes] = {}
    lost = 0
    for number in range(60):
        dies_at, writes = chance.randrange(8), 0

        def write(position: int, content: bytes, dies_at: int = dies_at) -> None:
            nonlocal writes
            if writes == dies_at:
                # Words are written at once; longer content may be cut anywhere.
                length = chance.choice((0, 8)) if len(content) <= 8 else chance.randrange(len(content) + 1)
                whole_write(position, content[:length])
                raise Killed
            writes += 1
            whole_write(position, content)

        arena._write = write  # type: ignore[method-assign]
        content = item(number, chance.randrange(400))
        try:
            if arena.put(hash_of(b"%d" % number), content):
                stored[number] = content
        except Killed:
            lost += len(content)
        for known in range(60):
            returned = Arena(arena.path, 1).get(hash_of(b"%d" % known))
            assert returned in ((stored[known],) if known in stored else (None, item(known, 0), content))
            if known not in stored and returned is not None:
                # It died after its last write.
                assert known == number
                stored[known] = returned
    assert arena.used <= sum(map(len, stored.values())) + lost


DYING_WRITER = """
import os, signal, sys
from gavel.training.data.arena import Arena, hash_of
arena, dies_at, writes = Arena(sys.argv[1], 100), int(sys.argv[2]), 0
def write(position, content):
    global writes
    if writes == dies_at:
        arena._map[position : position + len(content) // 2] = content[: len(content) // 2]
        os.kill(os.getpid(), signal.SIGKILL)
    writes += 1
    whole_write(position, content)
whole_write, arena._write = arena._write, write
for number in range(100):
    arena.put(hash_of(b"%d" % number), b"%d" % number * 50)
"""


def test_killed_processes_leave_an_arena_that_others_use(tmp_path: Path) -> None:
    """After kill -9 at each kind of write, the lock is free, and everything is a hit or a miss, then a hit."""
    arena = arena_in(tmp_path)
    for dies_at in (0, 1, 2, 7):
        done = subprocess.run(
            [sys.executable, "-c", DYING_WRITER, arena.path, str(dies_at)],
            env={"PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
    for number in range(100):
        content = b"%d" % number * 50
        assert arena.get(hash_of(b"%d" % number)) in (None, content)
        assert arena.put(hash_of(b"%d" % number), content)
        assert arena.get(hash_of(b"%d" % number)) == content


WRITER = """
import random, sys, zlib
from gavel.training.data import arena as module
from gavel.training.data.arena import Arena, hash_of
# Where the other process gets no turn for a second, an item would stay out.
module.LOCK_S = 60
arena, seed = Arena(sys.argv[1], 2000), int(sys.argv[2])
order = list(range(2000))
random.Random(seed).shuffle(order)
wrong = 0
for number in order:
    key, content = hash_of(b"%d" % number), random.Random(number).randbytes(number % 200)
    returned = arena.get(key)
    if returned is None:
        assert arena.put(key, content)
        returned = arena.get(key)
    wrong += returned != content
print(wrong)
"""


def test_two_processes_that_write_at_once(tmp_path: Path) -> None:
    """Two processes that store the same items in different orders store each item once, and read right bytes."""
    path = str(tmp_path / "arena")
    make_file(Path(path), 1 << 20)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(seed)],
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for seed in range(2)
    ]
    assert [writer.communicate()[0] for writer in writers] == [b"0\n", b"0\n"]
    assert Arena(path, 1).used == sum(number % 200 for number in range(2000))


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, (1 << 13) - 1), bit=st.integers(0, 7))
def test_a_damaged_file_never_gives_wrong_bytes(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    """With any bit of the file changed, each item is a miss or right, and the file is refused or usable."""
    folder = tmp_path_factory.mktemp("arena")
    arena = arena_in(folder, 1 << 13, items=20)
    for number in range(20):
        arena.put(hash_of(b"%d" % number), item(number, 80))
    arena._map[place] ^= 1 << bit
    try:
        again = Arena(arena.path, 20)
    except NoArena:
        return
    for number in range(20):
        assert again.get(hash_of(b"%d" % number)) in (None, item(number, 80))
        again.put(hash_of(b"%d" % number), item(number, 80))
        assert again.get(hash_of(b"%d" % number)) in (None, item(number, 80))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"GAVELAR1", "8 bytes"),
        (b"PK\3\4" * 5000, "another content"),
        (b"GAVELAR1" + b"\1" * 9000, "another content"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """A file of something else is no arena, and is not changed."""
    path = tmp_path / "arena"
    path.write_bytes(content)
    with pytest.raises(NoArena, match=reason):
        Arena(str(path), 10)
    assert path.read_bytes() == content


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    """A file that was cut is refused before anything behind its end is read."""
    arena = arena_in(tmp_path)
    for length in (1 << 15, 5000):
        os.truncate(arena.path, length)
        with pytest.raises(NoArena, match="damaged"):
            Arena(arena.path, 100)


def test_a_header_that_was_not_finished_is_written_again(tmp_path: Path) -> None:
    """A process that dies while it writes the header leaves an empty arena."""
    path = tmp_path / "arena"
    path.write_bytes(bytes(8) + b"\7" * 20 + bytes(20_000))
    arena = Arena(str(path), 10)
    assert arena.put(hash_of(b"a"), b"one")
    assert arena.get(hash_of(b"a")) == b"one"


@pytest.mark.parametrize("path", ["missing", "folder", "link"])
def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path, path: str) -> None:
    """A missing file, a directory and a symbolic link are no arenas."""
    (tmp_path / "folder").mkdir()
    make_file(tmp_path / "real", 10_000)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NoArena, match="cannot be opened"):
        Arena(str(tmp_path / path), 10)


def test_a_full_disk_at_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena that does not fit is not made, so no mapping can end a process with SIGBUS."""

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        make_file(tmp_path / "arena", 10_000)
    assert list(tmp_path.iterdir()) == []


def test_all_room_is_taken_at_creation(tmp_path: Path) -> None:
    """The file has no holes."""
    arena = arena_in(tmp_path, 1 << 20)
    assert os.stat(arena.path).st_blocks * 512 >= 1 << 20


def test_a_suspended_writer_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process keeps the lock, nothing is stored, and readers go on; writers wait once, not each time."""
    arena = arena_in(tmp_path)
    arena.put(hash_of(b"a"), b"one")
    other = Arena(arena.path, 1)
    now_s, waits = 1000.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s, waits
        now_s, waits = now_s + seconds, waits + 1

    monkeypatch.setattr(arenas.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(arenas.time, "sleep", sleep)
    with other._locked() as has_lock:
        assert has_lock
        assert not arena.put(hash_of(b"b"), b"two")
        waited = waits
        assert waited > 10
        assert not arena.put(hash_of(b"c"), b"three")
        assert waits == waited
        assert arena.get(hash_of(b"a")) == b"one"
    now_s += arenas.NO_WRITING_S
    assert arena.put(hash_of(b"b"), b"two")


def test_a_removed_arena_still_serves(tmp_path: Path) -> None:
    """When the agent has removed the file, a process that has it open reads on, and stores no more."""
    arena = arena_in(tmp_path)
    arena.put(hash_of(b"a"), b"one")
    os.unlink(arena.path)
    assert arena.get(hash_of(b"a")) == b"one"
    assert not arena.put(hash_of(b"b"), b"two")


def test_the_sum_is_that_of_the_copy() -> None:
    """The sum continues over key and bytes, so that neither can be exchanged."""
    assert arenas._sum(b"key", b"item") == zlib.crc32(b"keyitem")
