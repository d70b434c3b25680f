"""The files of a run are written atomically, never through a link, and read only if their owner is right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.shim.process_tree import Process, look_up, send
from worker_agent.shim.run_directory import START, RunDirectory, directory_name


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_a_lease_is_never_a_path(first: str, second: str) -> None:
    """Any id becomes one plain name, and different ids become different names."""
    for lease in (first, second):
        try:
            lease.encode()
        except UnicodeEncodeError:
            return
    names = directory_name(first), directory_name(second)
    for name in names:
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")
        assert len(name) <= 100
    assert (names[0] == names[1]) == (first == second)


@pytest.mark.parametrize(
    ("lease", "name"),
    [("17", "17"), ("12_0", "12_0"), ("a/1", "a%2F1"), ("..", "%2E."), ("%2F", "%252F"), ("é", "%C3%A9")],
)
def test_plain_ids_stay_readable(lease: str, name: str) -> None:
    """Other characters are escaped."""
    assert directory_name(lease) == name


def test_a_lease_has_an_id() -> None:
    """An empty id would be the directory of all runs."""
    with pytest.raises(ValueError, match="needs an id"):
        directory_name("")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Files are written aside and renamed; no temporary file is left, not even one of an earlier writer."""
    with RunDirectory.create(tmp_path, "17") as run:
        (run.path / f".lease.json.{os.getpid()}").symlink_to("/etc/passwd")
        run.write("lease.json", {"a": 1})
        first = run.version("lease.json")
        run.write("lease.json", {"a": 2}, durable=True)
        assert run.version("lease.json") != first
        assert run.read("lease.json") == {"a": 2}
        assert {path.name for path in run.path.iterdir()} == {"lease.json", "logs"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000, b'{"a": 1}' + b" " * 200]
)
def test_an_unreadable_file_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    """A truncated file, garbage, JSON that is no object, and a file that is too long are ignored."""
    with RunDirectory.create(tmp_path, "17") as run:
        (run.path / "x").write_bytes(content)
        assert run.read("x", size_bytes_max=200) is None
        assert run.read("absent") is None


def test_files_of_other_users_are_ignored(tmp_path: Path) -> None:
    """Links, pipes and directories are ignored, too."""
    with RunDirectory.create(tmp_path, "17") as run:
        run.write("x", {"a": 1})
        assert run.read("x", owner=os.geteuid()) == {"a": 1}
        assert run.read("x", owner=os.geteuid() + 1) is None
        (run.path / "link").symlink_to("x")
        os.mkfifo(run.path / "fifo")
        assert [run.read(name) for name in ("link", "fifo", "logs")] == [None, None, None]


def test_a_directory_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    """Another user may have put it there."""
    RunDirectory.create(tmp_path, "17").close()
    (tmp_path / "18").symlink_to("17")
    with pytest.raises(NotADirectoryError):
        RunDirectory(tmp_path / "18")
    with pytest.raises(FileExistsError):
        RunDirectory.create(tmp_path, "17")


def test_a_run_directory_has_one_lock(tmp_path: Path) -> None:
    """The lock is free again when its holder is gone."""
    with RunDirectory.create(tmp_path, "17") as run:
        run.write(START, {})
        lock = run.lock()
        assert lock is not None
        with RunDirectory(run.path) as other:
            assert other.lock() is None
            os.close(lock)
            second = other.lock()
            assert second is not None
            os.close(second)


def test_only_the_same_process_is_signalled() -> None:
    """A pid with another start time is another process."""
    own_process = look_up(os.getpid())
    assert own_process is not None
    assert send(own_process, 0)
    assert not send(Process(own_process.pid, own_process.start_ticks + 1), 9)
    assert not send(Process(2**22 - 1, 1), 9)
