"""The files of a cache: made when a run names them, within the setting, and removed 10 minutes after the last use."""

from __future__ import annotations

import errno
import grp
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_agent.node.test_staged_batches import nest
from worker_agent.node import node_cache
from worker_agent.node.node_cache import KEEP_S, CacheError, NodeCache, Wanted, wanted
from worker_agent.node.users import Account

MB = 1_000_000
ADA = Account(name="ada", home=Path("/"), login_shell="/bin/sh")
BOB = Account(name="bob", home=Path("/"), login_shell="/bin/sh")


def data_set(number: int, size: int = 0, account: Account = ADA, name: str = "digits") -> Wanted:
    """Return what a run names."""
    return Wanted(account, name, f"{number:032x}", size)


def cache_in(folder: Path, size: int = 10 * MB, **groups: str) -> NodeCache:
    """Return a cache of that size."""
    return NodeCache(folder / "cache" / "n1", size, groups)


def files(cache: NodeCache) -> dict[str, int]:
    """Return the sizes of all files, by user and data set."""
    return {
        f"{path.parent.name.removeprefix('user-')}/{int(path.stem, 16)}": path.stat().st_size
        for path in sorted(cache.root.glob("*/*.arena"))
    }


def test_a_data_set_gets_what_it_asks_for_and_the_next_one_the_rest(tmp_path: Path) -> None:
    """A file has its full length at once, without holes; for a third data set there is only an empty file."""
    cache = cache_in(tmp_path)
    cache.serve([data_set(1, 3 * MB), data_set(2), data_set(3)], 0.0)
    assert files(cache) == {"ada/1": 3 * MB, "ada/2": 7 * MB, "ada/3": 0}
    path = cache.directory(ADA) / f"{1:032x}.arena"
    assert path.stat().st_blocks * 512 >= 3 * MB
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(cache.root.stat().st_mode) == 0o711
    assert path.read_bytes() == bytes(3 * MB)


def test_a_file_made_longer_by_its_owner_takes_no_room_of_others(tmp_path: Path) -> None:
    """Holes are no memory."""
    cache = cache_in(tmp_path)
    cache.serve([data_set(1, 3 * MB)], 0.0)
    os.truncate(cache.directory(ADA) / f"{1:032x}.arena", 1 << 40)
    cache.serve([data_set(1, 3 * MB), data_set(2)], 1.0)
    # A file may take a block more than its length.
    assert 6.9 * MB < files(cache)["ada/2"] <= 7 * MB


def test_a_file_stays_while_a_run_names_it_and_10_minutes_longer(tmp_path: Path) -> None:
    """Then it is removed, and a data set that waited for room gets it. Its content is never touched before."""
    cache = cache_in(tmp_path)
    cache.serve([data_set(1)], 0.0)
    path = cache.directory(ADA) / f"{1:032x}.arena"
    path.open("r+b").write(b"some items")
    for now_s in (100.0, 500.0):
        cache.serve([data_set(1)], now_s)
    cache.serve([data_set(2)], 500.0 + KEEP_S - 1)
    assert files(cache) == {"ada/1": 10 * MB, "ada/2": 0}
    assert path.open("rb").read(10) == b"some items"
    cache.serve([data_set(2)], 500.0 + KEEP_S)
    assert files(cache) == {"ada/2": 10 * MB}


def test_a_restarted_agent_finds_what_is_there(tmp_path: Path) -> None:
    """Files of the agent before count, stay as they are, and have their 10 minutes; half-made ones are removed."""
    cache = cache_in(tmp_path)
    cache.serve([data_set(1, 4 * MB)], 0.0)
    path = cache.directory(ADA) / f"{1:032x}.arena"
    path.open("r+b").write(b"some items")
    (path.parent / ".new-123").write_bytes(b"half")
    again = cache_in(tmp_path)
    again.serve([data_set(2)], 5000.0)
    assert files(again) == {"ada/1": 4 * MB, "ada/2": 6 * MB}
    again.serve([data_set(1), data_set(2)], 5100.0)
    assert path.open("rb").read(10) == b"some items"
    assert not (path.parent / ".new-123").exists()
    again.serve([data_set(2)], 5100.0 + KEEP_S)
    assert files(again) == {"ada/2": 6 * MB}


def test_users_have_files_of_their_own(tmp_path: Path) -> None:
    """The same data set of two users is two files."""
    cache = cache_in(tmp_path)
    cache.serve([data_set(1, 2 * MB), data_set(1, 2 * MB, BOB)], 0.0)
    assert files(cache) == {"ada/1": 2 * MB, "bob/1": 2 * MB}


def test_a_group_shares_a_data_set_that_is_opened_to_it(tmp_path: Path) -> None:
    """Members of the group have one file together; others, and other data sets, are apart. It counts once."""
    own = grp.getgrgid(os.getegid()).gr_name
    cache = cache_in(tmp_path, digits=own)
    cy = Account(name="cy", home=Path("/"), login_shell="/bin/sh", uid=os.getuid(), groups=(os.getegid(),))
    di = Account(name="di", home=Path("/"), login_shell="/bin/sh", uid=os.getuid(), gid=os.getegid())
    named = [data_set(1, 2 * MB, account) for account in (cy, di, BOB)]
    named.append(data_set(2, MB * 2, cy, name="letters"))
    cache.serve(named, 0.0)
    gid = os.getegid()
    assert files(cache) == {
        f"group-{gid}/1": 2 * MB,
        "bob/1": 2 * MB,
        "cy/1": 2 * MB,
        "cy/2": 2 * MB,
        "di/1": 2 * MB,
    }
    paths = [cache.directory(account) / f"{1:032x}.arena" for account in (cy, di, BOB)]
    assert paths[0].samefile(paths[1])
    assert not paths[0].samefile(paths[2])
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o660
    cache.serve([data_set(3)], 1.0)
    assert files(cache)["ada/3"] == 4 * MB
    cache.serve([data_set(1, 2 * MB, di)], KEEP_S)
    assert set(files(cache)) == {f"group-{gid}/1", "di/1", "ada/3"}


def test_staged_batches_go_with_the_last_run_of_their_user(tmp_path: Path) -> None:
    """A user's jobs have a directory of their own for them; it is emptied when none of them runs."""
    cache = cache_in(tmp_path)
    for account in (ADA, BOB):
        staging = cache.directory(account) / "staging"
        assert stat.S_IMODE(staging.stat().st_mode) == 0o700
        (staging / "group").mkdir()
        (staging / "group" / "7.batch").write_bytes(b"batch")
        (staging / "link").symlink_to(tmp_path)
    cache.remove_staging([ADA, BOB])
    assert len(list(cache.root.glob("*/staging/group/*"))) == 2
    cache.remove_staging([BOB])
    assert not list((cache.directory(ADA) / "staging").glob("group*"))
    assert list(cache.root.glob("*/staging/group/*")) == [cache.directory(BOB) / "staging/group/7.batch"]
    assert tmp_path.exists()
    assert list(cache.root.glob("*/staging/group/*"))


def test_nothing_of_a_user_without_runs_stays(tmp_path: Path) -> None:
    """Whatever jobs have left there, files too, since all of it takes room of others."""
    cache = NodeCache(tmp_path / "cache" / "n1", 1_000_000)
    staging = cache.directory(ADA) / "staging"
    (staging / "blob").write_bytes(b"left")
    (staging / "group").mkdir()
    nest(staging / "group", 3000)
    cache.remove_staging([])
    assert not list(staging.iterdir())


def test_jobs_of_a_user_may_start_at_the_same_time(tmp_path: Path) -> None:
    """Each of them finds the directory, whichever makes it."""
    cache, together = NodeCache(tmp_path / "cache" / "n1", 1_000_000), threading.Barrier(4)

    def directory(number: int) -> Path:
        together.wait(60)
        return cache.directory(Account(name=f"user{number}", home=Path("/"), login_shell="/bin/sh"))

    with ThreadPoolExecutor(4) as starts:
        for number in range(100):
            paths = [starts.submit(directory, number) for _ in range(4)]
            assert len({each.result() for each in paths}) == 1


def test_an_unknown_group_is_an_error(tmp_path: Path) -> None:
    """A group that the node does not have is named at the start."""
    with pytest.raises(CacheError, match="no-such-group"):
        cache_in(tmp_path, digits="no-such-group")


def test_full_memory_leaves_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the file system has no room, the job is answered with an empty file, and nothing half-made is left."""
    cache = cache_in(tmp_path)

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        cache.serve([data_set(1)], 0.0)
    assert files(cache) == {"ada/1": 0}
    assert list(cache.root.glob("*/.new-*")) == []
    assert "No space left" in caplog.text
    cache.serve([data_set(1)], 1.0)
    assert files(cache) == {"ada/1": 10 * MB}


def test_too_small_a_file_system_is_reported(tmp_path: Path) -> None:
    """A setting beyond the file system is named at the start; one that fits is not."""
    assert cache_in(tmp_path, MB).trouble == ""
    trouble = cache_in(tmp_path, 10**15).trouble
    assert "1e+06 GB" in trouble
    assert "remount" in trouble


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """A link or another user's directory in the place of ours could lead files elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to("real")
    with pytest.raises(CacheError, match="--cache-dir"):
        cache_in(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"name": "a", "key": "../../etc/passwd"},
        {"name": "a", "key": "0" * 31},
        {"name": 1, "key": "0" * 32},
        {"name": "a", "key": "0" * 32, "bytes": "all"},
        {"name": "a", "key": "0" * 32, "bytes": True},
        {"name": "a", "key": "0" * 32, "bytes": -1},
        # More than a message to the scheduler can hold.
        {"name": "a", "key": "0" * 32, "bytes": 2**64},
    ],
)
def test_invalid_wishes_are_ignored(content: dict[str, object] | None) -> None:
    """What a job writes can name neither a path nor a size that is none."""
    assert wanted(content, ADA) is None


def test_a_wish_without_a_size_is_valid() -> None:
    """The size may be unknown."""
    assert wanted({"name": "a", "key": "0" * 32, "bytes": None}, ADA) == Wanted(ADA, "a", "0" * 32, 0)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=3),
            st.floats(0.0, KEEP_S * 1.5),
        ),
        max_size=12,
    )
)
def test_the_setting_holds_and_named_files_stay(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[tuple[int, int]], float]]
) -> None:
    """Whatever runs name and when: all files together are within the setting, and none in use is removed."""
    cache = cache_in(tmp_path_factory.mktemp("cache"), 8 * MB)
    now_s, named_s = 0.0, dict[int, float]()
    inodes: dict[int, int] = {}
    for named, wait_s in steps:
        now_s += wait_s
        cache.serve([data_set(number, size * MB) for number, size in named], now_s)
        named_s |= {number: now_s for number, _ in named}
        present = {
            int(path.stem, 16): path.stat().st_ino
            for path in cache.root.glob("*/*.arena")
            if path.stat().st_size
        }
        assert sum(files(cache).values()) <= 8 * MB
        for number, inode in inodes.items():
            if now_s - named_s[number] < KEEP_S:
                assert present.get(number) == inode
            elif number not in dict(named):
                assert number not in present
        inodes = present
        assert min((files(cache)[f"ada/{n}"] for n in present), default=8 * MB) >= node_cache.FILE_BYTES_MIN
