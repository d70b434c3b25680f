"""What the agent reports of its cache: the bytes that arenas hold, believed no further than their files go."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training.data.arena import Arena, hash_of
from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.node.cache_content import (
    CONTENT_S,
    Cached,
    Content,
    ContentReports,
    cached_in,
    content_to,
    named_by,
    used_bytes,
)
from worker_agent.node.node_cache import make_file

KEY = "0" * 31 + "1"
ITEMS = st.lists(st.binary(max_size=300), max_size=8)


def arena_in(
    folder: Path, name: str = KEY, items: tuple[bytes, ...] = (b"abc",), size: int = 1 << 16
) -> Path:
    """Make an arena with these items."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.arena"
    make_file(path, size)
    arena = Arena(str(path), 16)
    for number, item in enumerate(items):
        assert arena.put(hash_of(b"%d" % number), item)
    arena.close()
    return path


@given(items=ITEMS)
def test_the_bytes_are_those_that_the_job_library_counts(
    tmp_path_factory: pytest.TempPathFactory, items: list[bytes]
) -> None:
    """The agent reads the header without the job library, and gets the same number."""
    path = arena_in(tmp_path_factory.mktemp("a"), items=tuple(items))
    assert used_bytes(path) == sum(map(len, items)) == Arena(str(path), 16).used


@pytest.mark.parametrize(
    ("at", "content", "expected"),
    [
        (64, struct.pack("<Q", 2**64 - 1), (1 << 16) - 4096 - 32 * 32),
        (64, struct.pack("<Q", 0), 0),
        (0, b"elephant", 0),
        (8, struct.pack("<Q", 2**63), 0),
        (16, struct.pack("<Q", 0), 0),
    ],
)
def test_nonsense_in_a_header_is_clamped(tmp_path: Path, at: int, content: bytes, expected: int) -> None:
    """Whatever a job writes there: never less than nothing, never more than the file has room for."""
    path = arena_in(tmp_path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    assert used_bytes(path) == expected


def test_a_file_made_longer_by_its_owner_holds_no_more(tmp_path: Path) -> None:
    """Holes take no room, whatever the header says: so no job can report exabytes."""
    path = arena_in(tmp_path)
    size = 1 << 40
    head = struct.pack("<8sQQ", b"GAVELAR1", size, 32)
    with path.open("r+b") as file:
        file.truncate(size)
        file.write(head + struct.pack("<I", zlib.crc32(head)))
        file.seek(64)
        file.write(struct.pack("<Q", size))
    assert 0 < used_bytes(path) < 1 << 17


def test_files_of_other_names_are_left_out(tmp_path: Path) -> None:
    """A job with the rights of the agent may write there; what is no data set is not sent."""
    arena_in(tmp_path / "user-ada", KEY)
    for folder, name in (
        ("user-ada", os.fsdecode(b"\xff\xfe")),
        ("user-ada", "x"),
        (os.fsdecode(b"user-\xff"), KEY),
    ):
        arena_in(tmp_path / folder, name)
    content = Content(cached_in(tmp_path))
    assert [entry.key for entry in content.cached] == [KEY]
    assert content_to(content).cached[0].used_bytes == 3


def test_what_is_no_arena_is_empty(tmp_path: Path) -> None:
    """A new file, a shortened one and a named pipe have no bytes; a link is not followed."""
    path = tmp_path / "new.arena"
    path.write_bytes(bytes(10))
    assert used_bytes(path) == 0
    arena = arena_in(tmp_path)
    os.truncate(arena, 5000)
    assert used_bytes(arena) == 0
    os.mkfifo(tmp_path / "pipe")
    assert used_bytes(tmp_path / "pipe") == 0
    (tmp_path / "link").symlink_to(arena)
    with pytest.raises(OSError, match="link"):
        used_bytes(tmp_path / "link")


def test_each_file_counts_once_for_the_users_who_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own file counts for that user; a group's file, which users have by a second name, for all."""
    arena_in(tmp_path / "user-ada%40lab", "a" * 32, (b"x" * 100,))
    shared = arena_in(tmp_path / "group-1001", "b" * 32, (b"x" * 200,))
    (tmp_path / "user-bob").mkdir()
    os.link(shared, tmp_path / "user-bob" / shared.name)
    arena_in(tmp_path / "user-bob", "c" * 32, ())
    # As root, whose files belong to no job.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert [(entry.user, entry.key[0], entry.used_bytes) for entry in cached_in(tmp_path)] == [
        ("", "b", 200),
        ("ada@lab", "a", 100),
    ]
    monkeypatch.undo()
    assert [(entry.user, entry.key[0], entry.used_bytes) for entry in cached_in(tmp_path)] == [
        ("", "b", 200),
        ("", "a", 100),
    ]


def test_only_changes_are_sent_and_no_more_often_than_the_interval() -> None:
    """More than 10 % more bytes, another data set, a new name: a message; less, or a run that has ended: none."""
    sent: list[pb.CacheContent] = []
    reports = ContentReports(lambda message: sent.append(message.cache_content))
    now_s = 0.0
    assert reports.is_due(now_s)
    for used, named, is_sent in (
        (1000, {}, True),
        (1100, {}, False),
        (1101, {}, True),
        (1101, {"1": {KEY: 5}}, True),
        (1101, {"1": {KEY: 5}}, False),
        (1101, {}, False),
        (900, {}, True),
    ):
        before = len(sent)
        reports.update(Content((Cached("ada", KEY, used),), named), now_s)
        assert len(sent) - before == is_sent
        assert not reports.is_due(now_s + CONTENT_S - 1)
        now_s += CONTENT_S
        assert reports.is_due(now_s)
    reports.update(Content(), now_s)
    assert (len(sent), len(sent[-1].cached)) == (5, 0)
    assert sent[2].named[0] == pb.NamedData(lease="1", key=KEY, size_bytes=5)


def test_a_job_that_names_many_data_sets_is_cut_off() -> None:
    """Only the first eight of a lease count."""
    named = named_by(("1", f"{number:032x}", number) for number in range(20))
    assert named == {"1": {f"{number:032x}": number for number in range(8)}}
