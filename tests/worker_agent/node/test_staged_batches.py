"""Rings of prepared batches are removed when no process holds a member's file, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from worker_agent.node.staged_batches import remove_dead_rings


def ring_in(staging: Path, name: str = "sweep/ring-1") -> Path:
    """Make a ring with a batch and the file of a member that is gone."""
    ring = staging / name
    ring.mkdir(parents=True)
    (ring / "member-1").touch()
    (ring / "7.batch").write_bytes(b"batch")
    return ring


@pytest.mark.parametrize(
    "held", ["sweep/ring-1/member-1", "sweep"], ids=["a living member", "a job that joins"]
)
def test_a_ring_goes_when_no_process_uses_it(tmp_path: Path, held: str) -> None:
    """The lock of a member or of the group keeps it; without it, the ring goes. Rings of other groups go before."""
    ring = ring_in(tmp_path)
    other = ring_in(tmp_path, "other/ring-1")
    fd = os.open(tmp_path / held, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        remove_dead_rings(tmp_path)
        assert (ring.exists(), other.exists()) == (True, False)
    finally:
        os.close(fd)
    remove_dead_rings(tmp_path)
    assert not ring.exists()
    assert (tmp_path / "sweep").exists()


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    """A user may put anything there. The agent removes nothing elsewhere, and goes on with the other groups."""
    elsewhere = ring_in(tmp_path, "elsewhere/ring-1")
    staging = tmp_path / "staging"
    ring_in(staging, "z/ring-1")
    (staging / "a").symlink_to(elsewhere.parent)
    (staging / "b").mkdir()
    (staging / "b" / "ring-1").symlink_to(elsewhere)
    (staging / "c").touch()
    piped = ring_in(staging, "d/ring-1")
    os.mkfifo(piped / "member-2")
    linked = ring_in(staging, "e/ring-1")
    (linked / "outward").symlink_to(elsewhere)
    (staging / "f" / "ring-1").parent.mkdir()
    (staging / "f" / "ring-1").write_bytes(b"a file")
    # Beside a dead ring they keep nothing from being removed.
    ring_in(staging, "b/ring-2")
    ring_in(staging, "f/ring-2")
    remove_dead_rings(staging)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["7.batch", "member-1"]
    assert [(staging / name / "ring-1").exists() for name in "zde"] == [False] * 3
    assert [(staging / name).exists() for name in "abcf"] == [True] * 4
    assert [(staging / name / "ring-2").exists() for name in "bf"] == [False] * 2


def test_a_ring_goes_however_deep_a_job_has_nested_directories_in_it(tmp_path: Path) -> None:
    """Deeper than Python may call itself: the agent of all users would end."""
    nest(ring_in(tmp_path / "staging"), 3000)
    remove_dead_rings(tmp_path / "staging")
    assert [path.name for path in tmp_path.glob("staging/*")] == ["sweep"]
    assert not list(tmp_path.glob("staging/sweep/*"))


def nest(folder: Path, levels: int) -> None:
    """Make directories in each other, in this one."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The last job may have removed it meanwhile."""
    remove_dead_rings(tmp_path / "gone")
